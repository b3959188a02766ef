# A worker with SGLang on the CPU. It holds no model.

# By digest where builds must be the same: --build-arg PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
# An index with CPU builds of torch, whose wheels are some GB smaller; empty for none.
ARG PIP_EXTRA_INDEX_URL
COPY requirements requirements
COPY deploy/install.py deploy/install.py
COPY deploy/cpu deploy/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 deploy/install.py --venv /opt/headrace cpu \
    && /opt/headrace/bin/pip install --require-hashes -r requirements/core.txt
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY ingress ingress
COPY workers workers
RUN /opt/headrace/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="headrace-worker-cpu" \
    org.opencontainers.image.description="Headrace with SGLang on the CPU" \
    org.opencontainers.image.licenses="Apache-2.0"
# SGLang's sound support needs the library; SGLang looks for numactl. Debian keeps no old versions that
# could be named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libsndfile1 libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp headrace \
    && install -d -o 10001 -g 10001 /models \
    && install -d -m 700 -o 10001 -g 10001 /blobs
COPY --from=build /opt/headrace /opt/headrace
COPY deploy/cpu/trial.txt /usr/local/share/headrace/trial.txt
COPY --chmod=755 deploy/docker/prepare-trial-model /usr/local/bin/prepare-trial-model
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001:10001
VOLUME /models
ENTRYPOINT ["headrace"]
CMD ["worker"]
