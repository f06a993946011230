# SPDX-License-Identifier: Apache-2.0
"""Cases of the conformance table: tests/conformance.py runs them."""

from . import contrib, elementwise, products, tensors  # noqa: F401  they fill registry.GENERATORS
