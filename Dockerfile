# The proxy as a container: not root, nothing written but /data, so that it runs with `docker run --read-only`.
# To pin the base by content, append its digest to both FROM lines (`docker buildx imagetools inspect` names it):
#   python:3.11.14-slim-bookworm@sha256:...

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
COPY requirements.lock /source/
RUN /venv/bin/pip install --require-hashes --requirement /source/requirements.lock
COPY pyproject.toml README.md LICENSE /source/
COPY proxy /source/proxy
RUN /venv/bin/pip install --no-deps --no-build-isolation /source \
    && /venv/bin/pip uninstall --yes setuptools pip

FROM python:3.11.14-slim-bookworm
RUN groupadd --gid 10001 palimpsest \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin palimpsest \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /venv /venv
# SQLite and Python put temporary files beside the log, the only place that can be written.
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 TMPDIR=/data
USER 10001:10001
VOLUME /data
EXPOSE 8484
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8484/-/live', timeout=2)"]
ENTRYPOINT ["palimpsest"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/data"]
