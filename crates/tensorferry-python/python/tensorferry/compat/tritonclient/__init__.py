"""The names of Triton's Python client over this package's own client: no grpcio, protobuf, gevent or aiohttp.

::

    import tensorferry.compat.tritonclient.http as httpclient      # was: tritonclient.http
    import tensorferry.compat.tritonclient.grpc as grpcclient      # was: tritonclient.grpc

Both have ``InferenceServerClient``, ``InferInput``, ``InferRequestedOutput``, ``InferResult``, and ``aio`` beside them.

What is left out says so with an ``InferenceServerException``: tensors in shared memory, memory of graphics cards, traces, query
parameters, files in ``load_model``, plugins. Messages of protobuf are read-only objects with the same attributes.
"""
