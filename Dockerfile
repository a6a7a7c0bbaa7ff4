# The picker as an image: slim, non-root, every package pinned by hash.
#
# No container engine runs where the project is tested. tests/deploy/test_image.py reads this file, does its COPY
# and RUN steps as a script (folders in place of / and the user running the tests in place of root) and starts what
# they installed; the base image itself, and `docker build`, are not tried there.
#
#   docker build -t inference-picker:0.1.0 .

ARG PYTHON=3.11.14

# The full image has a C compiler: what is shipped is the compiled build, or nothing. COMPILED=0 ships pure Python.
FROM python:${PYTHON}-bookworm AS build
ARG COMPILED=1
ENV SOURCE=/src BUILD=/opt/build PICKER=/opt/picker PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The packages change less often than the code: a layer of their own.
COPY requirements.lock pyproject.toml ./
COPY deploy/image deploy/image
RUN python deploy/image/locked.py requirements.lock --project pyproject.toml \
      --root hatchling --root mypy --root setuptools --root types-protobuf --root types-pyyaml > build.lock \
 && python deploy/image/locked.py requirements.lock --project pyproject.toml --extra tracing --extra shared --extra kv-events > run.lock
RUN python -m venv "$BUILD" \
 && "$BUILD/bin/pip" install --quiet --require-hashes --requirement build.lock
# No pip in what is shipped: the build's pip installs into it.
RUN python -m venv --without-pip "$PICKER" \
 && "$BUILD/bin/pip" --python "$PICKER/bin/python" install --quiet --only-binary :all: --require-hashes --requirement run.lock
COPY README.md LICENSE hatch_build.py ./
COPY picker picker
RUN if [ "$COMPILED" = 1 ]; then export PICKER_COMPILED=1; else export PICKER_PURE=1; fi \
 && "$BUILD/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . \
 && "$BUILD/bin/pip" --python "$PICKER/bin/python" install --quiet --no-deps --no-index dist/*.whl
# What is in it: CycloneDX, `docker run --entrypoint cat IMAGE /opt/picker/sbom.cdx.json`.
RUN "$PICKER/bin/python" deploy/image/sbom.py > "$PICKER/sbom.cdx.json"

FROM python:${PYTHON}-slim-bookworm
# HOME: the user has no entry in /etc/passwd. No bytecode is written: the root filesystem is read-only in the chart.
ENV HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/picker /opt/picker
USER 65532:65532
EXPOSE 9002 9003 9090
ENTRYPOINT ["/opt/picker/bin/picker"]
CMD ["serve"]
