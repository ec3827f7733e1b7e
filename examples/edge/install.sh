#!/bin/sh
# Install what `whiten.Encoder` imports, and nothing else: sh install.sh FOLDER SOURCE [PYTHON]
# SOURCE is a clone of the project. Python then finds the packages by PYTHONPATH=FOLDER.
set -eu
folder=$1 source=$2 python=${3:-python3}
if [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
    echo "error: '$folder' is not empty, and tests and programs in it would be deleted; name a new FOLDER" >&2
    exit 2
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    -c "$source/constraints.txt" --target "$folder" "$source" onnxruntime numpy tokenizers msgspec safetensors

# What only other programs use: the library for C, and tools for graphs, Fortran and tests.
cd "$folder"
rm -rf bin onnxruntime/capi/libonnxruntime.so.* onnxruntime/datasets onnxruntime/quantization onnxruntime/tools \
    onnxruntime/transformers numpy/distutils numpy/f2py whiten_evaluation whiten_export whiten_models whiten_scale \
    whiten_serving whiten_whitening
find . -depth -type d -name tests -exec rm -rf {} +
