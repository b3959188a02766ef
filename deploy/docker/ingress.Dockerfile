# The ingress: HTTP in, jobs out. No engine, no torch.

# By digest where builds must be the same: --build-arg PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/core.txt requirements/core.txt
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes -r requirements/core.txt
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY ingress ingress
COPY workers workers
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="headrace-ingress" \
    org.opencontainers.image.description="Headrace without an engine: ingress, batcher, command line" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp headrace \
    && install -d -m 700 -o 10001 -g 10001 /blobs
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["headrace"]
CMD ["ingress", "--host", "0.0.0.0"]
