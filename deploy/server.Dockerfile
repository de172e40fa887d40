# rgpu-server with CuPy, for a host with NVIDIA GPUs (the NVIDIA Container Toolkit brings the driver).
#   docker build -f deploy/server.Dockerfile -t rgpu-server .
#   docker run --gpus all -p 47800-47832:47800-47832 -v rgpu-keys:/var/lib/rgpu rgpu-server
FROM python:3.13-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY csrc csrc
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim-bookworm
ARG EXTRA=server-cuda12
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/rgpu-*.whl)[cpu,${EXTRA}]" \
 && useradd --system --uid 4780 --create-home --home-dir /var/lib/rgpu rgpu
USER 4780
ENV RGPU_BIND=0.0.0.0 \
    RGPU_WORKER_PORTS=47801-47832 \
    RGPU_HTTP=127.0.0.1:9400 \
    RGPU_KEYS=/var/lib/rgpu/keys \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /var/lib/rgpu
EXPOSE 47800-47832
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9400/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["rgpu-server"]
