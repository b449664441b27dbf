class Sampler:
    def __init__(self, *a):
        pass
