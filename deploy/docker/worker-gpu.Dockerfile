# A worker with SGLang on NVIDIA GPUs: SGLang's own image with Headrace added.

# By digest where builds must be the same: --build-arg SGLANG_IMAGE=lmsysorg/sglang@sha256:…
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements/build.in requirements/build.in
RUN pip install --no-cache-dir -r requirements/build.in
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY ingress ingress
COPY workers workers
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${SGLANG_IMAGE}
LABEL org.opencontainers.image.title="headrace-worker-gpu" \
    org.opencontainers.image.description="Headrace with SGLang on NVIDIA GPUs" \
    org.opencontainers.image.licenses="Apache-2.0"
# What SGLang brought stays as it is; only what is missing is added.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --upgrade-strategy only-if-needed /wheels/*.whl \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /cache headrace \
    && install -d -o 10001 -g 10001 /cache \
    && install -d -m 700 -o 10001 -g 10001 /blobs
ENV PYTHONUNBUFFERED=1 HOME=/cache
USER 10001:10001
VOLUME /cache
ENTRYPOINT ["headrace"]
CMD ["worker"]
