"""``tritonclient.utils.cuda_shared_memory`` is not here: this package does not reach the memory of graphics cards."""

raise ImportError(
    "tensorferry.compat has no cuda_shared_memory: regions of graphics cards' memory that another library made can be registered "
    "with register_cuda_shared_memory"
)
