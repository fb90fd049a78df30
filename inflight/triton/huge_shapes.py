"""A tensor that claims more elements than an array can have: a request's fault, and not the end of the model's process.

Triton compares a tensor's bytes with its shape in 64 bits, in which INT32 [1, 2**62] takes none: 2**64 wraps to 0. The
Python backend's process then makes an array of that shape before any code of the model runs, NumPy raises, and nobody
catches it: `terminate called ... array is too big`, and with the process go everybody's requests.

The backend takes NumPy's functions from a table when it first needs one. `survive` shows it a copy of the table whose
function for making an array makes an empty one of such a shape, 0 in every dimension, for the model to refuse.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from numpy.core import multiarray as _multiarray

MAX_ELEMENTS = 2**48  # more than any memory holds, and few enough that their bytes do not wrap
# Fixed for good in NumPy: numpy/core/code_generators/numpy_api.py.
NEW_FROM_DESCR, NUM_FUNCTIONS = 94, 300  # the position of PyArray_NewFromDescr; pybind11 looks no further than that

# The array, from: class, dtype, number of dimensions, shape, strides, data, flags, object
_NewFromDescr = ctypes.PYFUNCTYPE(
    ctypes.py_object,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_ssize_t),
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)
_table_address = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)

multiarray: Any = _multiarray  # whose table NumPy's type hints do not know
_functions = (ctypes.c_void_p * NUM_FUNCTIONS).from_address(_table_address(multiarray._ARRAY_API, None))
_new_array = _NewFromDescr(_functions[NEW_FROM_DESCR] or 0)


@_NewFromDescr
def _new_array_or_empty(kind, dtype, num_dimensions, shape, strides, data, flags, owner):
    if math.prod(shape[i] or 1 for i in range(num_dimensions)) > MAX_ELEMENTS:
        shape, strides = (ctypes.c_ssize_t * num_dimensions)(), None
    return _new_array(kind, dtype, num_dimensions, shape, strides, data, flags, owner)


_changed = (ctypes.c_void_p * NUM_FUNCTIONS)(*_functions)  # both live as long as the process: the backend keeps them
_changed[NEW_FROM_DESCR] = ctypes.cast(_new_array_or_empty, ctypes.c_void_p).value


def survive(need_an_array: Callable[[], object]) -> None:
    """Have the backend take the changed table, and nobody after it.

    Parameters
    ----------
    need_an_array : function
        What makes the backend take it.
    """
    usual = multiarray._ARRAY_API
    multiarray._ARRAY_API = _new_capsule(ctypes.addressof(_changed), None, None)
    try:
        need_an_array()
    finally:
        multiarray._ARRAY_API = usual
