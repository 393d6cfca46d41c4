"""JSON output of commands with ``--json``."""

import json
import math
from typing import Any


def as_json(content: Any) -> str:
    """Return indented JSON, with null for values that JSON does not have, such as NaN."""
    return json.dumps(finite(content), indent=2, ensure_ascii=False, default=str)


def finite(content: Any) -> Any:
    """Return content with None for NaN and infinities, and texts as keys."""
    if isinstance(content, dict):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
