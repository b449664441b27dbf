"""Numbers: one folder per operator, plain-torch reference beside the kernels. torch and triton only."""
