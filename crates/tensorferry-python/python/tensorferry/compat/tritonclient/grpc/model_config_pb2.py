"""The enumerations of ``tritonclient.grpc.model_config_pb2``. Its messages are protobuf's, which this client does without."""

from __future__ import annotations

from typing import Any


class Enumeration:
    """Numbers and their names, with the methods that protobuf gives an enumeration."""

    def __init__(self, **numbers: int) -> None:
        self._numbers = numbers
        for name, number in numbers.items():
            setattr(self, name, number)

    def __getattr__(self, name: str) -> int:
        # All names are attributes of the instance.
        raise AttributeError(f"there is no {name}: expected one of {', '.join(self._numbers)}")

    def Name(self, number: int) -> str:
        """The name of a number."""
        for name, found in self._numbers.items():
            if found == number:
                return name
        raise ValueError(f"no name is known for the number {number}")

    def Value(self, name: str) -> int:
        """The number of a name."""
        try:
            return self._numbers[name]
        except KeyError:
            raise ValueError(f"there is no {name}: expected one of {', '.join(self._numbers)}") from None

    def keys(self) -> list[str]:
        """The names."""
        return list(self._numbers)

    def values(self) -> list[int]:
        """The numbers."""
        return list(self._numbers.values())

    def items(self) -> list[tuple[str, int]]:
        """Names and numbers."""
        return list(self._numbers.items())


DataType = Enumeration(
    TYPE_INVALID=0,
    TYPE_BOOL=1,
    TYPE_UINT8=2,
    TYPE_UINT16=3,
    TYPE_UINT32=4,
    TYPE_UINT64=5,
    TYPE_INT8=6,
    TYPE_INT16=7,
    TYPE_INT32=8,
    TYPE_INT64=9,
    TYPE_FP16=10,
    TYPE_FP32=11,
    TYPE_FP64=12,
    TYPE_STRING=13,
    TYPE_BF16=14,
)


class ModelInput:
    """The enumeration of this message."""

    Format = Enumeration(FORMAT_NONE=0, FORMAT_NHWC=1, FORMAT_NCHW=2)
    FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW = 0, 1, 2


class ModelInstanceGroup:
    """The enumeration of this message."""

    Kind = Enumeration(KIND_AUTO=0, KIND_GPU=1, KIND_CPU=2, KIND_MODEL=3)
    KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL = 0, 1, 2, 3


#: The enumeration of each field of a configuration that is one.
_OF_FIELDS = {"data_type": DataType, "format": ModelInput.Format, "kind": ModelInstanceGroup.Kind}


def numbered(config: Any, field: str = "") -> Any:
    """A configuration with numbers for the names of enumerations, as messages have them."""
    if isinstance(config, dict):
        return {name: numbered(value, name) for name, value in config.items()}
    if isinstance(config, list):
        return [numbered(value, field) for value in config]
    if isinstance(config, str) and field in _OF_FIELDS and config in _OF_FIELDS[field].keys():
        return _OF_FIELDS[field].Value(config)
    return config


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in DataType.keys():
        return DataType.Value(name)
    raise AttributeError(
        f"model_config_pb2.{name} is not supported: this client has no protobuf messages; get_model_config gives a read-only object "
        "with the same fields, and with as_json=True a dict"
    )
