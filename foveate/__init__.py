"""foveate: an inference server for vision-language models whose encoder streams images into prefill."""

__version__ = "0.1.0"
