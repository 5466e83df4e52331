"""From GGUF blocks to planes: what belongs together in memory lies together, and every row begins at the same place.

A quantised matrix of n rows and k columns becomes tensors of n rows each, in row order:

    low        the lower bits of the codes: uint8 [n, k * bits / 8] (see `bits`); int8 [n, k] for 8-bit codes
    high       the further bits of the codes, where a type has some: uint8 [n, k * bits / 8]
    d          scale per block: float16 [n, k / block]; `exponents` instead, uint8, in MXFP4
    m          offset per block: float16 [n, k / block] (types ending in _1)
    dmin       scale of the minima per block: float16 [n, k / block] (K types)
    scales     scale of a group within its block: int8 or uint8 [n, k / group]
    mins       minimum of a group, times dmin: uint8 [n, k / group]
    pairs      both, in the low and the high four bits: uint8 [n, k / group] (Q2_K)

A value is `code * scale + offset` in float32; `values.py` multiplies in the order that ggml does, so that it agrees to
the last bit. No plane is larger than its part of the file, but for six-bit scales (Q3_K, Q4_K, Q5_K, IQ4_XS), which
take a byte each: 1.5% to 3.6% more.
"""
