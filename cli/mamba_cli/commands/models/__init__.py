"""Commands about the models in the model cache of this machine."""
