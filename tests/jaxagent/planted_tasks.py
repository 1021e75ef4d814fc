"""Candidate tasks with one planted fault each, and honest ones that look like them."""

from __future__ import annotations

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


def task(
    forward: str, *, init: str = "pass", inputs: str = "[torch.randn(1024, 1024)]", head: str = "", arguments: str = ""
) -> str:
    """A task's text; `forward` and `init` are statements, lines apart by newlines."""
    body = "\n".join(f"        {line}" for line in forward.splitlines())
    made = "\n".join(f"        {line}" for line in init.splitlines())
    return (
        f"{_HEAD}{head}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n\n"
        f"    def forward(self, x{arguments}):\n{body}\n\n\n"
        f"def get_inputs():\n    return {inputs}\n\n\ndef get_init_inputs():\n    return []\n"
    )


_COPIED = task("return torch.tanh(self.fc(x))", init="self.fc = nn.Linear(1024, 512)")

PLANTED: dict[str, tuple[str, str]] = {
    "unclosed": ("syntax_error", task("return (x + 1")),
    "tabs_and_spaces": ("syntax_error", "class Model:\n\tdef forward(self, x):\n        return x\n"),
    "other_class": ("no_model", task("return x.relu()").replace("class Model(", "class Net(")),
    "no_forward": ("no_model", task("return x.relu()").replace("def forward(", "def call(")),
    "empty_file": ("no_model", ""),
    "no_inputs": ("missing_get_inputs", task("return x.relu()").replace("def get_inputs", "def make_inputs")),
    "no_init_inputs": ("missing_get_inputs", task("return x.relu()").replace("get_init_inputs", "init_inputs")),
    "imports_os": ("import_forbidden", "import os\n" + task("return x.relu()")),
    "imports_in_forward": ("import_forbidden", task("import subprocess\nreturn x.relu()")),
    "imports_by_name": ("import_forbidden", task("__import__('socket')\nreturn x.relu()")),
    "compiles_an_extension": (
        "import_forbidden",
        "from torch.utils.cpp_extension import load_inline\n" + task("return x.relu()"),
    ),
    "loads_weights": ("import_forbidden", task("return x + torch.load('weights.pt')")),
    "wrong_width": (
        "input_shape_mismatch",
        task("return self.fc(x)", init="self.fc = nn.Linear(512, 512)"),
    ),
    "two_inputs_for_one": ("input_shape_mismatch", task("return x.relu()", inputs="[torch.randn(9, 9)] * 2")),
    "wrong_channels": (
        "input_shape_mismatch",
        task("return self.conv(x)", init="self.conv = nn.Conv2d(3, 8, 3)", inputs="[torch.randn(4, 4, 64, 64)]"),
    ),
    "changing_shapes": (
        "input_shape_mismatch",
        task("return x.relu()", inputs="[torch.randn(int(torch.randint(500, 90000, (1,))), 8)]"),
    ),
    "raises": ("eager_fails", task("raise RuntimeError('not implemented')")),
    "undefined_name": ("eager_fails", task("return y.relu()")),
    "exits": ("eager_fails", task("raise SystemExit(0)")),
    "needs_a_terabyte": ("eager_fails", task("return x.relu()", inputs="[torch.randn(1 << 19, 1 << 19)]")),
    "has_no_shape_for_the_compiler": (
        "compile_fails",
        task(
            "return _odd(x)",
            head="@torch.library.custom_op('planted::odd', mutates_args=())\n"
            "def _odd(x: torch.Tensor) -> torch.Tensor:\n    return x.relu()\n\n\n"
            "@_odd.register_fake\ndef _(x):\n    raise RuntimeError('never compiled')\n\n\n",
        ),
    ),
    "answers_otherwise_when_compiled": (
        "compile_fails",
        task("return x.relu() + 1 if torch.compiler.is_compiling() else x.relu()"),
    ),
    "dropout_in_training": ("stochastic", task("return F.dropout(x, 0.5, training=True)")),
    "python_noise": ("stochastic", "import random\n" + task("return x * random.random()")),
    "adds_noise": ("stochastic", task("return x + torch.randn_like(x)")),
    "quiet_noise": ("stochastic", task("return x + 1e-12 * torch.rand_like(x)")),
    "uninitialised": ("stochastic", task("return x + torch.empty(1024, 1024).clamp(-9, 9)")),
    "counts_its_calls": (
        "stochastic",
        task("self.calls += 1\nreturn x * self.calls", init="self.calls = 0"),
    ),
    "hidden_weights": (
        "stochastic",
        task("return x @ self.hidden", init="self.hidden = torch.randn(1024, 256)"),
    ),
    "zeros": ("constant_output", task("return torch.zeros_like(x)")),
    "softmax_of_one": ("constant_output", task("return F.softmax(x.mean(1, keepdim=True), dim=1)")),
    "saturated": ("constant_output", task("return torch.sigmoid(x * 0.01 + 200)")),
    "nearly_all_clipped": ("constant_output", task("return (x + 2.9).clamp(max=0.0)")),
    "empty": ("constant_output", task("return x.relu()[:, :0]")),
    "offset": ("indistinguishable_output", task("return 1000 + 0.001 * x.relu()")),
    "same_inputs": (
        "indistinguishable_output",
        task("return x.relu()", inputs="[torch.arange(1048576.0).reshape(1024, 1024)]"),
    ),
    "idle_weights": (
        "indistinguishable_output",
        task("return x.relu() + 0 * self.fc.weight.sum()", init="self.fc = nn.Linear(4, 4)"),
    ),
    "returns_a_number": ("non_tensor_output", task("return float(x.sum())")),
    "returns_none_beside": ("non_tensor_output", task("return x.relu(), None")),
    "returns_sparse": ("non_tensor_output", task("return x.relu().to_sparse()")),
    "relu_in_place": ("mutates_inputs", task("return F.relu(x, inplace=True)")),
    "writes_a_row": ("mutates_inputs", task("x[0] = 0\nreturn x.exp()")),
    "running_mean": (
        "mutates_inputs",
        task(
            "self.mean.mul_(0.9).add_(x.mean())\nreturn x.tanh()", init="self.register_buffer('mean', torch.zeros(1))"
        ),
    ),
    "prints": ("prints_or_reads_files", task("print('shape', x.shape)\nreturn x.relu()")),
    "reads_a_file": ("prints_or_reads_files", task("open('/etc/hostname').read()\nreturn x.relu()")),
    "reads_through_numpy": (
        "prints_or_reads_files",
        "import numpy\n" + task("numpy.loadtxt('/proc/../etc/hostname', dtype=str)\nreturn x.relu()"),
    ),
    "reads_what_is_missing": ("prints_or_reads_files", task("return x * len(open('/tmp/no-such-file').read())")),
    "writes_a_file": ("prints_or_reads_files", task("open('/tmp/planted', 'w').write('x')\nreturn x.relu()")),
    "endless": ("hangs", task("while True:\n    pass")),
    "endless_inputs": ("hangs", task("return x.relu()", inputs="[torch.randn(9) for _ in iter(int, 1)]")),
    "sleeps": ("hangs", "import time\n" + task("time.sleep(0.003)\nreturn x.relu()")),
    "tiny": ("too_fast", task("return torch.tanh(x)", inputs="[torch.randn(4, 4)]")),
    "huge": (
        "too_slow",
        task("return x @ x @ x @ x @ x @ x", inputs="[torch.randn(3072, 3072)]"),
    ),
    "seven_operators": (
        "too_many_ops",
        task("return x.relu().tanh().sigmoid().exp().log1p().neg().abs()"),
    ),
    "six_modules": (
        "too_many_ops",
        task(
            "return self.layers(x)",
            init="self.layers = nn.Sequential(nn.Tanh(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softplus(), nn.ELU())",
        ),
    ),
    "z_copy_renamed": ("duplicate", "# the same again\n" + _COPIED.replace("self.fc", "self.layer")),
    "z_copy_resized": ("duplicate", _COPIED.replace("randn(1024,", "randn(1100,")),
}
"""Name -> (reason, code). Names that begin with z_ are copies of HONEST["copied"]."""

HONEST: dict[str, str] = {
    "copied": _COPIED,
    "other_operator": _COPIED.replace("tanh", "sigmoid"),
    "other_scale": _COPIED.replace("randn(1024,", "randn(4096,"),
    "dropout_in_eval": task(
        "return self.drop(self.act(x))", init="self.drop = nn.Dropout(0.5)\nself.act = nn.Softsign()"
    ),
    "attention": task("return F.scaled_dot_product_attention(x, x, x)", inputs="[torch.randn(4, 8, 256, 64)]"),
    "rrelu_in_eval": task("return self.act(x)", init="self.act = nn.RReLU()"),
    "integers": task("return torch.argmax(x, dim=1)", inputs="[torch.randn(4096, 1024)]"),
    "booleans": task("return x.cumsum(1) > 0"),
    "operand": task("operand = x.exp()\nrandom_walk = operand.cumsum(1)\nreturn random_walk"),
    "small_variance": task("return 1.0 + 0.01 * x.tanh()"),
    "small_values": task("return 1e-6 * x.erf()"),
    "mean_of_many": task("return x.atan().mean(dim=1)", inputs="[torch.rand(1024, 1024)]"),
    "several_outputs": task("values, indices = torch.topk(x, 5, dim=1)\nreturn values, indices"),
    "named_outputs": task("return {'low': x.min(dim=1).values, 'high': x.max(dim=1).values}"),
    "batch_norm": task("return F.hardswish(self.bn(x))", init="self.bn = nn.BatchNorm1d(1024)"),
    "copies_before_writing": task("y = x.clone()\ny[0] = 0\nreturn y.logsumexp(dim=1)"),
    "empty_that_is_filled": task("y = torch.empty(1024, 1024)\ny.copy_(x.asinh())\nreturn y"),
    "five_operators": task("return x.relu().tanh().sigmoid().exp().log1p()"),
    "views_do_not_count": task(
        "y = x.reshape(32, 32, 32, 32).permute(0, 2, 1, 3).contiguous().transpose(0, 1).flatten(2)\n"
        "return y.unsqueeze(0).expand(2, 32, 32, 1024).sinh().squeeze(0)[..., :512].cos()"
    ),
    "sparse_but_moving": task("return F.threshold(x, 2.5, 0.0)", inputs="[torch.randn(2048, 1024)]"),
    "random_start": task("return x @ self.weight", init="self.weight = nn.Parameter(torch.rand(1024, 512))"),
    "constant_mask": task("return (x @ x).tril()", inputs="[torch.randn(512, 512)]"),
    "random_state_buffer": task(
        "return x * self.scale.log()", init="self.register_buffer('scale', torch.rand(1024) + 2)"
    ),
    "two_inputs": task(
        "return torch.addmm(y, x, x)", inputs="[torch.randn(512, 512), torch.randn(512, 512)]", arguments=", y"
    ),
    "comment_about_print": task("# print(x); open('file'); import os\nreturn x.log_softmax(dim=-1)"),
}
