# The proxy as a container: not root, nothing written but /data, so that it runs with `docker run --read-only`.
# To pin the base by content, append its digest to both FROM lines (`docker buildx imagetools inspect` names it):
#   python:3.11.14-slim-bookworm@sha256:...

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# "outlines": the grammars that outline source code, 190 MB more; "mcp": the MCP server, 26 MB more; "providers": litellm,
# 105 MB more; "telemetry": OpenTelemetry, 10 MB more; or several of them.
ARG EXTRAS=""
RUN python -m venv /venv
COPY requirements.lock requirements-outlines.lock requirements-mcp.lock requirements-providers.lock \
     requirements-telemetry.lock /source/
RUN set -e; for lock in requirements $(for extra in $EXTRAS; do echo "requirements-$extra"; done); do \
        /venv/bin/pip install --no-deps --require-hashes --requirement "/source/$lock.lock"; done
COPY pyproject.toml palimpsest_command.py README.md LICENSE /source/
COPY proxy /source/proxy
RUN /venv/bin/pip install --no-deps --no-build-isolation /source \
    && /venv/bin/pip uninstall --yes setuptools pip

FROM python:3.11.14-slim-bookworm
RUN groupadd --gid 10001 palimpsest \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin palimpsest \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /venv /venv
# SQLite and Python put temporary files beside the log, the only place that can be written. Address and directory are
# settings here and not options, so that they hold whatever options `docker run` adds, and for every other command.
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 TMPDIR=/data \
    PALIMPSEST_SERVER__HOST=0.0.0.0 PALIMPSEST_DATA=/data
USER 10001:10001
VOLUME /data
EXPOSE 8484
# The server notes in its data directory where it listens.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["python", "-c", "import os, pathlib, urllib.request as u; noted = pathlib.Path(os.environ['PALIMPSEST_DATA'], 'address'); address = noted.exists() and noted.read_text().strip() or 'http://127.0.0.1:' + os.environ.get('PALIMPSEST_SERVER__PORT', '8484'); u.build_opener(u.ProxyHandler({})).open(address + '/-/live', timeout=2)"]
# Options alone are options of `serve`: `docker run palimpsest --port 9000`; any other command is named first.
ENTRYPOINT ["sh", "-c", "case \"${1-}\" in --help|--version) ;; -*) set -- serve \"$@\" ;; esac; exec palimpsest \"$@\"", "palimpsest"]
CMD ["serve"]
