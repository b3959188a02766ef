"""Make PyPI's torchvision importable beside a CPU build of torch.

Run it with the environment's python. SGLang imports torchvision on its way up but calls nothing of
it for text models. PyPI's build is a CUDA build: its library cannot load without the CUDA runtime,
and `import torchvision` then stops at two operations that the library would have declared.
Declaring them is enough. Running it twice changes nothing.
"""

import importlib.util
import sys
from pathlib import Path

MARK = "# headrace: CPU declarations"
PATCH = f"""{MARK}
import torch as _torch

if not _torch.cuda.is_available() and not hasattr(_torch, "_headrace_torchvision"):
    _torch._headrace_torchvision = _torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _torch._headrace_torchvision.define(
            _name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

"""


def main() -> None:
    # found through torch, because finding torchvision's own spec may import it
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit("torch is not installed here")
    init = Path(torch.origin).parents[1] / "torchvision" / "__init__.py"
    source = init.read_text()
    if MARK not in source:
        init.write_text(PATCH + source)


if __name__ == "__main__":
    main()
