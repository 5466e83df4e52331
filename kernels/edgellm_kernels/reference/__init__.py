"""Every op in plain torch, float32 throughout: what kernels are held against, and what runs where there is none.

A row's result has the same bits whatever else is in the call. Only operations of IEEE 754 (+ - * / sqrt, comparisons),
which are exact for each element, are used on rows, and matrix products of one fixed size (`tiles`); sums are trees and
exponentials polynomials (`exact`), because torch's own take another path at the end of a tensor than before it.
"""
