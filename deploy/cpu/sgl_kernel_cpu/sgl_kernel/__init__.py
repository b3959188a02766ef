"""A stand-in for `sgl_kernel` where SGLang runs on a CPU: there is no CPU build of the real one.

SGLang 0.5.23 calls two of its operations on every CPU; they are written here in plain PyTorch.
Every other name can be imported and raises NotImplementedError when it is called, so nothing is
faked in silence. `torch.ops.sgl_kernel.*` stays empty, which makes SGLang choose its own PyTorch
code for norms, rotary embeddings, activations and the rest.

This package must never lie beside the real kernels, whose module name it takes: `install.py`
refuses to install it there, and importing it there fails.
"""

import ctypes
import sys
import types
from importlib import metadata

__version__ = "0.0.0+headrace.cpu"

_REAL = ("sglang-kernel", "sgl-kernel")
_SUBMODULES = ("flash_attn", "mamba", "quantization", "speculative")


def _refuse_beside_real_kernels():
    for name in _REAL:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        raise ImportError(
            f"{name} {version} is installed, and headrace-sgl-kernel-cpu stands in its place. "
            "Uninstall headrace-sgl-kernel-cpu and reinstall the real package."
        )


def assign_req_to_token_pool_cpu(
    req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len
):
    """Write each request's newly allocated cache slots into its row of the request table.

    Args:
        req_pool_indices: (requests,) rows of `req_to_token`.
        req_to_token: (rows, pool_len) the table, changed in place.
        start: (requests,) first column to write.
        end: (requests,) column after the last to write.
        out_cache_loc: (sum(end - start),) slots, request after request.
        pool_len: Columns of the table; known from its shape.
    """
    taken = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        count = last - first
        slots = out_cache_loc[taken : taken + count]
        req_to_token[row, first:last] = slots.to(req_to_token.dtype)
        taken += count


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Copy cache rows `src_loc` to `tgt_loc` in every layer, as if all were read before any write.

    Args:
        data_ptrs: (layers,) address of each layer's buffer.
        strides: (layers,) bytes per row.
        tgt_loc: (rows,) rows to write.
        src_loc: (rows,) rows to read.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def _missing(name):
    def operation(*args, **kwargs):
        raise NotImplementedError(f"{name} has no CPU stand-in")

    operation.__name__ = name.rpartition(".")[2]
    return operation


def _lookup(module):
    def getter(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{module}.{name}")

    return getter


_refuse_beside_real_kernels()
__getattr__ = _lookup(__name__)
for _name in _SUBMODULES:
    _module = types.ModuleType(f"{__name__}.{_name}")
    _module.__getattr__ = _lookup(_module.__name__)
    sys.modules[_module.__name__] = _module
    globals()[_name] = _module
