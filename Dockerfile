# The image of every role: `crumb` is its entry point, `docker run IMAGE COMMAND …` runs any command.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/breadcrumbs
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY breadcrumbs breadcrumbs
COPY runtime runtime
COPY context_builder context_builder
COPY agents agents
COPY config config
COPY docs docs
COPY web web
# Both variables, because the version of pip decides which one also holds for setuptools (see ./crumb).
RUN PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
    /opt/breadcrumbs/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM python:3.12-slim
# A fixed number, so that a mounted volume can be given to it by name or by number.
# The folder is for a volume: processes remember there which store they have used.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin crumb \
    && install --directory --owner=crumb --mode=0700 /var/lib/breadcrumbs
COPY --from=build /opt/breadcrumbs /opt/breadcrumbs
ENV PATH=/opt/breadcrumbs/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/crumb
EXPOSE 8081
# The exec form: SIGTERM reaches the server itself, which then ends its streams and drains.
ENTRYPOINT ["crumb"]
CMD ["serve", "--host", "0.0.0.0"]
