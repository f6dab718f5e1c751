# One image for the operator, the driver and the executors, and a small one for the operator alone.
#
#   docker build -t levada:0.1.0 .                               or: make image
#   docker build -t levada-operator:0.1.0 --target operator .    or: make image IMAGE_ARGS='--target operator' IMAGE=...
#
# It needs nothing of the network when it runs, and writes to /tmp and /var/lib/levada alone.

# A Debian 12 with apt; a Python of its own (python:3.11-slim-bookworm, say) is used, else Debian's 3.11 is installed.
# A release passes it with the digest of that moment, so that both images and each architecture begin with the same.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libnss-wrapper tini $(command -v python3 >/dev/null || echo python3) \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
# Hadoop asks for the user's name, so that there must be one.
RUN groupadd --gid 185 levada && useradd --uid 185 --gid 185 --no-create-home --home-dir /var/lib/levada levada \
    && rm -rf /var/log/*.log /var/log/lastlog /var/log/faillog /etc/*- \
    && install -d -o 185 -g 185 -m 0775 /var/lib/levada


FROM base AS build
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jdk-headless python3-venv

# Of the JDK: all of Java SE, what Spark and its libraries ask for beyond, and jcmd for a look inside.
RUN home="$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")" \
    && "$home/bin/jlink" --output /opt/levada/java --strip-java-debug-attributes --no-header-files --no-man-pages \
        --add-modules java.se,jdk.charsets,jdk.crypto.cryptoki,jdk.crypto.ec,jdk.incubator.vector,jdk.jcmd,jdk.jfr \
        --add-modules jdk.localedata,jdk.management,jdk.management.agent,jdk.naming.dns,jdk.net,jdk.nio.mapmode \
        --add-modules jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs \
    && rm -f /opt/levada/java/lib/security/cacerts \
    && cp -L /etc/ssl/certs/java/cacerts /opt/levada/java/lib/security/cacerts \
    && /opt/levada/java/bin/java -Xshare:dump >/dev/null
ENV JAVA_HOME=/opt/levada/java

# pyspark is published as a source archive alone. Without build isolation, it is built by what build.txt pins.
WORKDIR /src
COPY requirements/build.txt requirements/image.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /build && python3 -m venv --without-pip /opt/levada/venv \
    && /build/bin/pip install --require-hashes -r requirements/build.txt \
    && /build/bin/pip wheel --no-build-isolation --require-hashes --wheel-dir /wheels -r requirements/image.txt \
    && /build/bin/pip --python /opt/levada/venv install --no-compile --no-index --no-deps /wheels/*.whl \
    && rm -rf /wheels

# What no pipeline loads: machine learning, graphs, Spark Connect, the state of Spark's own streams, HTTP/3, Arrow Flight,
# the asynchronous half of Kubernetes' client, native libraries of other systems, headers, tests, examples.
RUN cd /opt/levada/venv/lib/python3*/site-packages \
    && rm -rf pyspark/jars/spark-mllib[-_]* pyspark/jars/spark-graphx_* pyspark/jars/spark-connect_* pyspark/jars/connect-repl \
        pyspark/jars/breeze* pyspark/jars/spire* pyspark/jars/cats-kernel_* pyspark/jars/algebra_* \
        pyspark/jars/rocksdbjni-* pyspark/jars/netty-codec-native-quic-* \
        pyspark/jars/netty-*-osx-* pyspark/jars/netty-*-windows-* pyspark/examples pyspark/data pyspark/R \
        pyarrow/include pyarrow/src pyarrow/flight.py pyarrow/_flight* pyarrow/libarrow_flight* \
        pyarrow/libarrow_python_flight* kubernetes/aio \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && /build/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/levada/venv

# A Java that must trust other certificates, or go by a proxy, to fetch the jars is told so here.
ARG JAVA_TOOL_OPTIONS
COPY engine/levada/errors.py /fetch/levada/
COPY engine/levada/local /fetch/levada/local
COPY engine/levada/destinations/iceberg/jars.toml /fetch/levada/destinations/iceberg/
RUN LEVADA_CACHE=/opt/levada/cache PYTHONPATH=/fetch /opt/levada/venv/bin/python -m levada.local \
    && rm /opt/levada/cache/jars/.lock


# The project by itself: a layer of a few megabytes, the only one that changes with it.
FROM build AS project
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY operator operator
RUN /build/bin/pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /wheels . \
    && /build/bin/pip --python /opt/levada/venv install --no-compile --no-index --no-deps --root /project /wheels/*.whl \
    && /build/bin/python -m compileall -q -s /project --invalidation-mode unchecked-hash /project
COPY --chmod=0755 docker/entrypoint.sh /project/opt/levada/entrypoint.sh


# The operator's packages: no Java, no Spark, no Arrow.
FROM build AS operator-packages
COPY requirements/operator.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv --without-pip /operator \
    && /build/bin/pip --python /operator install --no-compile --only-binary :all: --require-hashes -r requirements/operator.txt \
    && rm -rf /operator/lib/python3*/site-packages/kubernetes/aio \
    && /build/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /operator


# What both images have in common. It has no files. The version is set last, so that no layer depends on it.
FROM base AS runtime
ENV HOME=/var/lib/levada \
    LC_ALL=C.UTF-8 \
    PATH=/opt/levada/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/levada
USER 185:185
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/levada/entrypoint.sh"]
LABEL org.opencontainers.image.licenses="Apache-2.0"


FROM runtime AS operator
COPY --from=operator-packages /operator /opt/levada/venv
COPY --from=project /project /
CMD ["operator"]
ARG VERSION=dev
ARG REVISION=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="levada-operator" \
      org.opencontainers.image.description="Postgres tables, kept up to date in a lakehouse: the operator alone" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"


FROM runtime
COPY --from=build /opt/levada /opt/levada
COPY --from=project /project /
ENV JAVA_HOME=/opt/levada/java \
    LEVADA_CACHE=/opt/levada/cache \
    PATH=/opt/levada/venv/bin:/opt/levada/java/bin:/usr/local/bin:/usr/bin:/bin
CMD ["levada", "--help"]
ARG VERSION=dev
ARG REVISION=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="levada" \
      org.opencontainers.image.description="Postgres tables, kept up to date in a lakehouse: operator, driver and executor" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
