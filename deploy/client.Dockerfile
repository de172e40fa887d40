# The client: no GPU, no CUDA, no driver. Add your program, or run one from a volume.
#   docker build -f deploy/client.Dockerfile -t rgpu-client .
#   docker run -e RGPU_SERVERS=gpu1,gpu2 -e RGPU_VISIBLE_DEVICES=0,1 -v "$PWD:/work" rgpu-client python train.py
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
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir /wheels/rgpu-*.whl \
 && useradd --uid 1000 --create-home user
USER 1000
WORKDIR /work
ENTRYPOINT ["rgpu", "run", "--"]
CMD ["python"]
