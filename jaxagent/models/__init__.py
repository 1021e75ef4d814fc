"""Decoders in Flax NNX, of several families, from and to Hugging Face folders."""
