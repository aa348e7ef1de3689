"""Writes types.safetensors, one tensor of each type, and types.json, its values.

Needs: pip install safetensors numpy ml_dtypes
"""
import json
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

edge = [0.0, -0.0, 1.0, -1.5, 0.0078125, 240.0, 3.0, -0.375]
types = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}
tensors, values = {}, {}
for name, kind in types.items():
    data = np.array(edge)
    if name[0] in "IUB":
        data = np.array([0, 1, 2, 100, 5, 17, 127, 33])
        if name[0] == "I":
            data = data * np.array([1, -1] * 4)
    x = data.astype(kind).reshape(2, 2, 2)
    tensors["a." + name] = x
    values["a." + name] = {"dtype": name, "shape": list(x.shape), "data": [float(v) for v in x.astype(np.float64).ravel()]}
tensors["scalar"] = np.array(-2.5, np.float32)
values["scalar"] = {"dtype": "F32", "shape": [], "data": [-2.5]}
tensors["empty"] = np.zeros((0, 3), np.float16)
values["empty"] = {"dtype": "F16", "shape": [0, 3], "data": []}
save_file(tensors, "types.safetensors", metadata={"format": "pt"})
json.dump(values, open("types.json", "w"), indent=1)
