"""d3rlpy's own losses and gradients on weights and transitions of ours; run in an environment that has it.

`python d3rlpy_steps.py REQUEST ANSWER`, both `.npz`. The request has the algorithm and its settings as JSON, a batch,
the random numbers of each step, and weights as `module:parameter`; the answer has losses, and gradients by these names.
"""

# This file is run where d3rlpy and torch are, and checked where they need not be.
# pyright: basic, reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np

HIDDEN = (16, 24)


def create(algorithm: str, observations: int, actions: int, settings: dict[str, Any]) -> Any:
    """The implementation of an algorithm."""
    import d3rlpy
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.models.q_functions import QRQFunctionFactory

    algos, encoder = d3rlpy.algos, VectorEncoderFactory(hidden_units=list(HIDDEN))
    if "quantiles" in settings:
        settings["q_func_factory"] = QRQFunctionFactory(n_quantiles=settings.pop("quantiles"))
    kind = getattr(algos, f"{algorithm}Config")
    encoders = {name: encoder for name in kind.__dataclass_fields__ if name.endswith("encoder_factory")}
    algo = kind(**encoders, **settings).create(device="cpu:0")
    algo.create_impl((observations,), actions)
    if algorithm == "AWAC":
        # It inherits the targets of SAC with a temperature of 1; those of the paper have no entropy.
        next(algo.impl._modules.log_temp.parameters()).data.fill_(-math.inf)
    return algo.impl


def modules_of(impl: Any) -> dict[str, Any]:
    """Its networks by short names."""
    held = vars(impl._modules)
    found = {name: held[name] for name in ("policy", "targ_policy", "imitator", "value_func") if name in held}
    for name in ("q_funcs", "targ_q_funcs"):
        found |= {f"{name}{index}": module for index, module in enumerate(held.get(name, ()))}
    return found


def gradients(modules: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {
        f"{name}:{key}": parameter.grad.numpy().copy()
        for name, module in modules.items()
        if name.rstrip("0123456789") in names
        for key, parameter in module.named_parameters()
    }


def main(request_path: str, answer_path: str) -> None:
    """Answer a request."""
    import torch
    from d3rlpy.torch_utility import TorchMiniBatch
    from torch.distributions import normal

    request = dict(np.load(request_path))
    asked = json.loads(str(request.pop("asked")))
    columns = {
        name.removeprefix("batch:"): torch.tensor(request.pop(name)) for name in list(request) if "batch:" in name
    }
    noise = {name.removeprefix("noise:"): torch.tensor(request.pop(name)) for name in list(request) if "noise:" in name}
    impl = create(asked["algorithm"], columns["observations"].shape[1], asked["actions"], asked["settings"])
    modules = modules_of(impl)
    for name, module in modules.items():
        wanted = {key: torch.tensor(request.pop(f"{name}:{key}")) for key, _ in module.named_parameters()}
        module.load_state_dict(wanted)
    assert not request, f"there are weights that nothing has: {sorted(request)}"
    rows = len(columns["rewards"])
    batch = TorchMiniBatch(
        **columns,
        next_actions=columns["actions"],
        returns_to_go=torch.zeros(rows, 1),
        intervals=torch.ones(rows, 1),
        device="cpu:0",
    )

    def draw(step: str) -> None:
        """Make its next random numbers those of the request."""
        normal._standard_normal = lambda shape, **_: noise[step].reshape(shape)
        torch.randn = lambda shape, **_: noise[step].reshape(shape)

    answer: dict[str, Any] = {}

    def tell(step: str, losses: Any) -> None:
        answer.update({f"{step}:{name}": value.detach().numpy() for name, value in vars(losses).items()})

    if "imitator" in modules:
        tell("loss", impl.compute_imitator_grad(batch))
        answer |= gradients(modules, ("imitator",))
    elif "policy" in modules:
        draw("critic")
        tell("critic", impl.compute_critic_grad(batch))
        answer |= gradients(modules, ("q_funcs", "value_func"))
        draw("actor")
        tell("actor", impl.compute_actor_grad(batch))
        answer |= gradients(modules, ("policy",))
    else:
        tell("loss", impl.compute_grad(batch))
        answer |= gradients(modules, ("q_funcs",))
    np.savez(answer_path, **answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
