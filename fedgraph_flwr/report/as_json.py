"""JSON output of commands with ``--json``."""

import json
import math
from typing import Any


def as_json(content: Any) -> str:
    """Return indented JSON, with null for values that JSON does not have, such as NaN."""
    return json.dumps(finite(content), indent=2, ensure_ascii=False, default=str)


def finite(content: Any, digits: int = 17) -> Any:
    """Return content of any depth with None for NaN and infinities, texts as keys, and numbers of at most so many digits."""
    content = content.tolist() if hasattr(content, "tolist") else content  # of NumPy
    if isinstance(content, dict):
        return {str(key): finite(value, digits) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value, digits) for value in content]
    if isinstance(content, float):
        return float(f"{content:.{digits}g}") if math.isfinite(content) else None
    return content
