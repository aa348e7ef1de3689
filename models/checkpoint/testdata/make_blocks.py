"""Writes blocks.gguf: random blocks of each coding as tensor T, and as T.f32 what
the gguf package dequantises them to; and keys with values of each type.

Needs: pip install gguf numpy
"""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFValueType as V

rng = np.random.default_rng(7)
w = gguf.GGUFWriter("blocks.gguf", "test")
values = {
    V.UINT8: 200, V.INT8: -100, V.UINT16: 60000, V.INT16: -30000, V.UINT32: 4000000000, V.INT32: -2000000000,
    V.FLOAT32: 0.15625, V.BOOL: True, V.STRING: "héllo", V.UINT64: 1 << 63, V.INT64: -1 << 62, V.FLOAT64: 0.1,
}
for kind, v in values.items():
    w.add_key_value("one." + kind.name.lower(), v, kind)
    w.add_key_value("array." + kind.name.lower(), [v, v] if kind != V.BOOL else [True, False], V.ARRAY, sub_type=kind)

# Where each coding keeps its F16 numbers, which are set to ordinary values.
halves = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q2_K: [80, 82], Q.Q3_K: [108],
          Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_NL: [0], Q.MXFP4: [], Q.IQ4_XS: [0]}
for kind, places in halves.items():
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows, blocks = 2, 2 if elements == 256 else 8
    raw = rng.integers(0, 256, (rows * blocks, size), np.uint8)
    for p in places:
        raw[:, p:p + 2] = rng.normal(0, 0.1, rows * blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
    if kind == Q.MXFP4:
        raw[:, 0] = [0, 1, 2, 3, 100, 120, 125, 126, 127, 128, 129, 130, 150, 200, 250, 251]
    raw = raw.reshape(rows, blocks * size)
    w.add_tensor(kind.name, raw, raw_dtype=kind)
    w.add_tensor(kind.name + ".f32", gguf.dequantize(raw, kind).astype(np.float32))
for name, t in {"F16": np.float16, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}.items():
    x = rng.integers(-100, 100, (3, 5)).astype(t)
    w.add_tensor(name, x)
    w.add_tensor(name + ".f32", x.astype(np.float32))
x = rng.normal(0, 1, (3, 5)).astype(np.float32)
x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
w.add_tensor("BF16", (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8), raw_dtype=Q.BF16)
w.add_tensor("BF16.f32", x)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
