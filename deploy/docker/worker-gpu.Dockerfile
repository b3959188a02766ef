# A worker with SGLang on NVIDIA GPUs: SGLang's own image with Headrace added.

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY requirements/build.in requirements/build.in
RUN pip install -r requirements/build.in
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY ingress ingress
COPY workers workers
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM lmsysorg/sglang:v0.5.23
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
