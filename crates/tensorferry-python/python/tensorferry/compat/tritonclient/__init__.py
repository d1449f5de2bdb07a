"""The names of Triton's Python client over this package's own client: no grpcio, protobuf, gevent or aiohttp.

::

    import tensorferry.compat.tritonclient.http as httpclient      # was: tritonclient.http
    import tensorferry.compat.tritonclient.grpc as grpcclient      # was: tritonclient.grpc

Both have ``InferenceServerClient``, ``InferInput``, ``InferRequestedOutput``, ``InferResult``, and ``aio`` beside them.

What is left out says so with an ``InferenceServerException``: the module ``cuda_shared_memory``, query parameters, contexts and
credentials of other libraries. Messages of protobuf are read-only objects with the same attributes.
"""
