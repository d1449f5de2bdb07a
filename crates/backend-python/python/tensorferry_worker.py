"""Runs one model for a server: loads what the server sends, and runs one request at a time, or several if the model
continues requests after their call has returned.

The other side is the crate oip-worker, whose documentation describes the protocol. Before the handshake with the
server, only the standard library may be imported, so that a missing package can be reported.
"""

import _thread
import asyncio
import collections
import concurrent.futures
import contextvars
import errno
import gc
import json
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import weakref

VERSION = 6
HELLO, LOAD, LOADED, INFER, OUTPUTS, FAILED, RUN, RESULTS, ROOM, REGION, PART, TAKEN, ASK, ANSWER, NEXT, FREE = range(1, 17)

#: Numbers on the control socket.
_NUMBER = struct.Struct("<Q")
#: This number announces a connection, whose descriptor comes with it.
_CONNECTION = (1 << 64) - 1

_HEAD = struct.Struct("<IIQQ")
#: A plain integer, because the enumeration's own `&` runs Python code for each message.
_TRUNCATED = int(socket.MSG_CTRUNC)
#: Parses JSON without skipping surrounding whitespace.
_scan = json.JSONDecoder().scan_once
_encode = json.JSONEncoder(separators=(",", ":")).encode
_ALIGNMENT = 16
_REGION_ALIGNMENT = 64
#: Maximum size of outputs that are sent in the frame after the JSON, in bytes.
_MOST_IN_FRAME = 64 << 10
#: Number of bytes that are read at once: a frame of usual size.
_BUFFER = 256 << 10
#: Maximum total size of a connection's two regions that are kept for reuse, in bytes.
_KEPT = 112 << 20
#: Stack size of the threads that talk to the server. The default is 8 MiB, which counts in full against a memory limit.
_STACK = 512 << 10
#: Signals that a service manager sends to all processes of a service. They are ignored, because the server tells this
#: process when to end.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Maximum number of calls to other models that one request may have open.
_MOST_CALLS = 256
#: Maximum number of characters of a traceback that are sent to the log.
_MOST_DETAILS = 60 << 10
#: Seconds that a model may take to finish after the server unloads it.
_FAREWELL = 1.0


class Ended(Exception):
    """Raised when the server has closed the connection."""


class Refused(Exception):
    """An error that is sent to the server instead of a response."""

    def __init__(self, message, status=500, details=None):
        super().__init__(message)
        self.status = status
        #: A traceback for the server's log.
        self.details = details


def _failure(refusal):
    """Returns an error for the server. Messages come from models, and may contain characters that cannot be encoded."""
    status = refusal.status
    is_status = isinstance(status, int) and 400 <= status < 600
    message = str(refusal).encode("utf-8", "replace").decode()
    failed = {"status": status if is_status else 500, "message": message[:2000]}
    if refusal.details:
        failed["details"] = refusal.details.encode("utf-8", "backslashreplace").decode()
    return failed


#: The sockets to the server. Processes that a model forks must close them.
_sockets = set()
#: Whether this process was forked by a model.
_is_forked = False
#: Held while a thread is started, since the stack size is a setting of the whole process.
_starting = threading.Lock()


def start_thread(function, *arguments):
    """Starts a thread with a small stack, for this module and not for models.

    Does not use `threading.Thread`, whose `start` waits for the thread: models' threads that start meanwhile would get
    a small stack too.
    """
    with _starting:
        before = threading.stack_size(_STACK)
        try:
            _thread.start_new_thread(function, arguments)
        finally:
            threading.stack_size(before)


class Connection:
    """Sends and receives frames on a socket. Only one thread may receive at a time; any number may send."""

    def __init__(self, data=None):
        self._socket = None
        #: Held while a frame is sent, so that frames of several threads do not mix.
        self._sending = threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self._files = []
        if data is not None:
            self.attach(data)

    def attach(self, data):
        """Sets the socket, if it arrives after the memory was allocated."""
        self._socket = data
        _sockets.add(data)

    def _fill(self, view):
        try:
            received, ancillary, flags, _ = self._socket.recvmsg_into([view], 256)
        except ConnectionError:
            # Other connections in the process may belong to the model; only the end of this one ends the worker.
            raise Ended from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % 4
                self._files.extend(struct.unpack(f"{whole // 4}i", content[:whole]))
        if flags & _TRUNCATED:
            # The process has no free file descriptor.
            self._files.append(None)
        if received == 0:
            raise Ended
        return received

    def _peek(self, count):
        """Returns the next `count` bytes, which must fit into the buffer, without consuming them."""
        if self._end - self._start < count:
            if self._start + count > _BUFFER:
                left = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(left)] = left
                self._start, self._end = 0, len(left)
            while self._end - self._start < count:
                self._end += self._fill(self._buffer[self._end :])
        return self._buffer[self._start : self._start + count]

    def take(self, count):
        """Returns the next `count` bytes: a view of the buffer if they fit, which is valid until the next call, or else a
        new object."""
        if count <= _BUFFER:
            view = self._peek(count)
            self._start += count
            if self._start == self._end:
                self._start = self._end = 0
            return view
        whole = memoryview(bytearray(count))
        have = self._end - self._start
        whole[:have] = self._buffer[self._start : self._end]
        self._start = self._end = 0
        while have < count:
            have += self._fill(whole[have:])
        return whole

    def frame(self):
        """Returns the next frame: kind, number, the decoded JSON, and the binary part as a view, which the next call
        overwrites."""
        kind, count, number, binary = _HEAD.unpack(self.take(_HEAD.size))
        body = self.take(count + binary)
        message = _scan(str(body[:count], "utf-8"), 0)[0]
        if kind == REGION or (kind == ANSWER and "region" in message):
            message["file"] = self._files.pop(0)
        return kind, number, message, body[count:]

    def close(self):
        _sockets.discard(self._socket)
        self._socket.close()

    def send(self, kind, number, message, parts=()):
        self.send_text(kind, number, _encode(message), parts)

    def fail(self, number, message, status, details=None):
        """Sends an error instead of a response."""
        self.send(FAILED, number, _failure(Refused(message, status, details)))

    def send_text(self, kind, number, text, parts=()):
        text = text.encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        binary = sum(map(len, parts))
        buffers = [_HEAD.pack(kind, len(text), number, binary) + text, *parts]
        try:
            with self._sending:
                self._send_all(buffers, len(buffers[0]) + binary)
        except ConnectionError:
            raise Ended from None

    def _send_all(self, buffers, whole):
        sent = self._socket.sendmsg(buffers[:512]) if len(buffers) <= 512 else 0
        if sent == whole:
            return
        for buffer in buffers:
            if sent >= len(buffer):
                sent -= len(buffer)
                continue
            self._socket.sendall(memoryview(buffer)[sent:])
            sent = 0


class Joined:
    """The outputs of several requests that were joined into one, and the errors of those that failed."""

    def __init__(self, outputs, refusals):
        self.outputs = outputs
        self.failed = [{"part": part, "error": _failure(refusal)} for part, refusal in refusals]


class Region:
    """Memory that the server shares."""

    def __init__(self, file, length, access):
        if file is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.length = length
        try:
            self.memory = mmap.mmap(file, length, access=access)
        finally:
            os.close(file)
        #: Number of references to the memory while no array uses it.
        self.references = sys.getrefcount(self.memory)

    def is_held(self):
        return sys.getrefcount(self.memory) > self.references


class Worker:
    def __init__(self, connection, tensors, calls, cancelled):
        self._connection = connection
        self.calls = calls
        self._tensors = tensors
        self._cancelled = cancelled
        #: Held by code that uses the region for outputs, or waits for the server, since a model may have several
        #: threads.
        self._turn = threading.Lock()
        #: Whether a thread reads from the server. It starts with the first call to another model, whose responses
        #: arrive at any time.
        self._has_reader = False
        #: Functions of the threads that start with that call and have not started yet.
        self._not_started = [Worker._keep_telling, Worker._read]
        #: Frames that the reader passes to other threads; None at the end.
        self._frames = queue.SimpleQueue()
        #: The number of the request that is being answered, and its calls to other models, by number.
        self._current = None
        self._calls = {}
        #: Whether the request accepts no more calls, because its response is being sent.
        self._is_ending = False
        #: The request for which the server waits to be told that another one can start.
        self._blocking = None
        self._freeing = threading.Lock()
        #: Whether other workers run requests at the same time.
        self._is_beside = False
        #: Prepares for another connection with the next request, and returns whether it can be accepted.
        self.make_ready = lambda: True
        #: The number of the last request that ran.
        self.last = 0
        self._last_call = 0
        #: Calls that a garbage collection found abandoned, and the queue that wakes the thread that tells the server. A
        #: collection may run at any point, so adding a call takes no lock; removing one holds a lock until the server
        #: has been told.
        self._left = collections.deque()
        self._has_left = queue.SimpleQueue()
        self._telling = threading.Lock()
        self._model = None
        self._max_answer = 0
        self._limit = None
        self._inputs = None
        self._outputs = None
        #: Whether the inputs of the current request are in the shared region.
        self._is_in_region = False
        #: Sizes in bytes of regions that are no longer used, while a model still holds references to their memory.
        self._held = {}
        #: The reason why the last region for inputs could not be mapped.
        self._unmapped = None
        #: Names of outputs in JSON.
        self._names = {}

    def load(self, order, content, model_of):
        self._max_answer = order["max_answer_bytes"]
        self._limit = order["memory_limit"]
        self._model = model_of(order, content)
        self._connection.send(LOADED, 0, self._model.about())

    def beside(self, connection):
        """Creates a worker for the same model, with a separate connection."""
        other = Worker(connection, self._tensors, self.calls, self._cancelled)
        other._max_answer, other._limit, other._model = self._max_answer, self._limit, self._model
        other._is_beside = True
        return other

    def runs_beside(self):
        """Returns whether the model runs for several requests at once, and the model's event loop."""
        self._is_beside = self._model.runs_beside
        return self._is_beside, getattr(self._model, "loop", None)

    def set_main(self, main):
        self._model.main = main

    def attach(self, data):
        self._connection.attach(data)

    def close(self):
        self._connection.close()

    def answers(self):
        """Returns the request that is being answered and not cancelled, or None."""
        current = self._current
        return None if current is None or self._is_ending or current in self._cancelled else current

    def is_full(self):
        """Returns whether the request has the maximum number of open calls."""
        return len(self._calls) >= _MOST_CALLS

    def _next(self):
        """Returns the next frame that is not a response from another model."""
        if not self._has_reader:
            return self._connection.frame()
        frame = self._frames.get()
        if frame is None:
            self._frames.put(None)
            raise Ended
        return frame

    def serve(self):
        while True:
            kind, number, message, binary = self._next()
            if kind == REGION:
                self._map(message)
                continue
            if kind != RUN:
                raise Ended
            keeps_inputs = True
            try:
                results, parts, keeps_inputs = self._run(number, message, binary)
            except Refused as refusal:
                failed = (str(refusal), refusal.status, refusal.details)
                results = None
            except MemoryError as error:
                failed = (f"its model.py ran out of memory: {last_line(error)}", 500, traceback_of(error))
                results = None
            except Ended:
                raise
            except BaseException as error:
                failed = (f"its response cannot be sent: {last_line(error)}", 500, traceback_of(error))
                results = None
            finally:
                self._end_request()
                self._cancelled.forget(number)
            if results is None:
                # The references that the exception held were dropped when its clause ended.
                if self._is_full():
                    sys.stderr.write("MemoryError: the process is at the limit of its memory and ends\n")
                    sys.stderr.flush()
                    os._exit(1)
                self._connection.fail(number, *failed)
            else:
                self._connection.send_text(RESULTS, number, results, parts)
            results = parts = None
            self._forget(keeps_inputs)

    def _forget(self, keeps_inputs):
        """Releases the regions that the server does not reuse either."""
        left = _KEPT
        if self._inputs is not None:
            if keeps_inputs or self._inputs.length > left:
                self._let_go_of_inputs()
            else:
                left -= self._inputs.length
        if self._outputs is not None and self._outputs.length > left:
            self._outputs = None

    def _map(self, message):
        access = mmap.ACCESS_WRITE
        if message["is_for_inputs"]:
            self._let_go_of_inputs()
            if not self._model.may_write_inputs:
                access = mmap.ACCESS_READ
        try:
            region = Region(message["file"], message["length"], access)
        except OSError as error:
            if not message["is_for_inputs"]:
                raise
            # The error is reported when a request needs the region.
            self._unmapped = last_line(error)
            return
        if message["is_for_inputs"]:
            self._inputs = region
        else:
            self._outputs = region

    def _let_go_of_inputs(self):
        region, self._inputs = self._inputs, None
        if region is not None:
            self._count_while_held(region)

    def _count_while_held(self, region):
        """Counts a region for as long as arrays of the model refer to it, since shared memory does not count against the
        limit of the process. The last array removes the region: `dict.pop` may run at any point, in any thread."""
        self._held[weakref.ref(region.memory, self._held.pop)] = region.length

    def _is_full(self):
        if self._limit is None:
            return False
        gc.collect()
        used = sum(list(self._held.values()))
        try:
            with open("/proc/self/status") as status:
                for line in status:
                    if line.startswith("VmData:"):
                        used += int(line.split()[1]) << 10
        except (OSError, MemoryError):
            return True
        # If a small allocation failed, nearly all memory is in use; a large one may simply have been too large.
        return used > self._limit - self._limit // 10

    def _run(self, number, message, binary):
        self._is_in_region = message.get("region") is not None
        region = self._inputs if self._is_in_region else None
        if self._is_in_region and region is None:
            raise Refused(f"its inputs cannot be read: {self._unmapped}")
        if self._limit is not None and self._held and self._is_full():
            raise MemoryError("the model holds on to its inputs")
        arrays = {}
        for place in message["inputs"]:
            arrays[place["name"]] = self._input(place, region, binary)
        self._is_ending = False
        self._current = self._blocking = self.last = number
        if self._is_beside:
            self.calls._current.set((self, number))
        if self._model.is_decoupled:
            give = lambda outputs, is_last: self._give(number, region, outputs, is_last)
            self._model.stream(number, message, arrays, give, lambda: self._free(number))
            placed, parts, end = "", [], ',"is_end":true'
        else:
            outputs = self._model.infer(number, message, arrays)
            # Some of the joined requests may have failed.
            end = ""
            if isinstance(outputs, Joined):
                end = f',"failed":{_encode(outputs.failed)}' if outputs.failed else ""
                outputs = outputs.outputs
            self._end_request()
            placed, parts = self._place(outputs, region, number)
        arrays = outputs = None
        is_held = region is not None and region.is_held()
        return f'{{"outputs":[{placed}],"keeps_inputs":{"true" if is_held else "false"}{end}}}', parts, is_held

    def _free(self, number):
        """Tells the server that the model can accept another request while it continues this one."""
        with self._freeing:
            if self._blocking == number and self.make_ready():
                self._blocking = None
                try:
                    self._connection.send(FREE, number, {})
                except (Ended, OSError):
                    # The request's own thread will notice.
                    pass

    def _give(self, number, region, outputs, is_last):
        """Sends one of several responses, and waits until the server has taken it. Returns whether another one is wanted."""
        try:
            with self._turn:
                placed, parts = self._place(outputs, region, number)
                text = f'{{"outputs":[{placed}],"is_last":{"true" if is_last else "false"}}}'
                self._connection.send_text(PART, number, text, parts)
                kind, _, message, _ = self._next()
                if kind != TAKEN:
                    raise Ended
                is_wanted = message["is_wanted"]
        except Ended:
            if not self._is_beside:
                raise
            # The server has abandoned this request, but not the model.
            is_wanted = False
        if not is_wanted:
            self._cancelled.note(number)
        return is_wanted

    def ask(self, message, tensors, call, request):
        """Calls another model for the request with this number or, if that is None, for the request that is being
        answered. Returns the number of the call; `put` receives its responses."""
        if _is_forked:
            # Checked before any lock is taken, since a thread of the parent process may hold it.
            raise self._failure("a process that the model has forked cannot call other models: let its parent call them", 501)
        try:
            return self._ask(message, tensors, call, request)
        except Ended:
            if not self._is_beside:
                raise
            # The server has abandoned the request.
            self._cancelled.note(request)
            raise self._over() from None

    def _ask(self, message, tensors, call, request):
        with self._turn:
            if request is not None and (request != self._current or self._is_ending):
                raise self._over()
            if self._current is None:
                raise self._failure("other models can be called only while a request is answered", 503)
            self._tell_left()
            if len(self._calls) >= _MOST_CALLS:
                raise self._failure(f"a request may make at most {_MOST_CALLS} calls at once", 429)
            self._start_threads()
            region = self._inputs if self._is_in_region else None
            try:
                placed, parts = self._place(tensors, region, self._current)
            except Refused as refusal:
                raise self._failure(str(refusal), 413) from None
            except OSError as error:
                raise self._failure(f"its inputs cannot be sent: {last_line(error)}", 500) from None
            self._last_call += 1
            number = self._last_call
            self._calls[number] = call
            text = f'{{"call":{number},"inputs":[{placed}],{_encode(message)[1:]}'
            self._connection.send_text(ASK, self._current, text, parts)
            if '"place":"region"' in placed or '"place":"inputs"' in placed:
                # The region will be reused, and the model may modify its inputs, so wait until the server has read
                # them.
                kind, _, _, _ = self._next()
                if kind != TAKEN:
                    raise Ended
            return number

    def _start_threads(self):
        while self._not_started:
            try:
                start_thread(self._not_started[0], self)
            except (RuntimeError, MemoryError) as error:
                raise self._failure(f"there is no thread to wait for other models: {last_line(error)}", 503) from None
            self._not_started.pop(0)
        self._has_reader = True

    def want_next(self, number):
        self._say_next(number, True)

    def leave(self, number):
        # The server is told first, so that it never has more calls open than are counted here.
        if number in self._calls:
            self._say_next(number, False)
            self._calls.pop(number, None)

    def leave_later(self, number):
        """Leaves a call from within a garbage collection, which may interrupt any other code here."""
        self._left.append(number)
        self._has_left.put(None)

    def _tell_left(self):
        with self._telling:
            while self._left:
                self.leave(self._left.popleft())

    def _keep_telling(self):
        """Runs the thread that tells the server about abandoned calls while the model waits, maybe for the resources that
        they hold."""
        try:
            while True:
                self._has_left.get()
                self._tell_left()
        except (Ended, OSError):
            pass

    def _say_next(self, number, is_wanted):
        current = self._current
        if current is None:
            return
        try:
            self._connection.send(NEXT, current, {"call": number, "is_wanted": is_wanted})
        except Ended:
            if not self._is_beside:
                raise
            # The server has abandoned the request, and its calls with it.
            self._cancelled.note(current)

    def _end_request(self):
        """Ends the request: the server drops its calls that were not waited for."""
        if self._current is None:
            return
        with self._freeing:
            self._blocking = None
        self._is_ending = True
        with self._turn:
            self._current = None
            calls, self._calls = self._calls, {}
        for call in calls.values():
            call.put(self._over())

    def _over(self):
        return self.calls.Failed("the request that asked for it is over", 499, is_over=True)

    def _failure(self, message, status):
        return self.calls.Failed(message, status)

    def _read(self):
        """Runs the reader thread."""
        try:
            while True:
                kind, number, message, binary = self._connection.frame()
                if kind == ANSWER:
                    self._answer(message, bytes(binary))
                else:
                    self._frames.put((kind, number, message, bytes(binary)))
        except Exception as error:
            if not isinstance(error, (Ended, OSError)):
                log_traceback(error)
        self._frames.put(None)
        # If there are several connections, only this one is closed: its request was abandoned.
        gone = self._over() if self._is_beside else self._failure("the server has closed the connection", 503)
        for call in list(self._calls.values()):
            call.put(gone)

    def _answer(self, message, binary):
        is_end = message["is_end"]
        calls = self._calls
        call = calls.pop(message["call"], None) if is_end else calls.get(message["call"])
        region = None
        try:
            if "region" in message:
                access = mmap.ACCESS_WRITE if self._model.may_write_inputs else mmap.ACCESS_READ
                region = Region(message["file"], message["region"], access)
            if call is None:
                # The call was abandoned meanwhile.
                return
            if "failed" in message:
                failed = message["failed"]
                call.put(self._failure(failed["message"], failed["status"]))
                return
            outputs = message.get("outputs")
            if outputs is not None:
                outputs = [(place["name"], place["datatype"], self._input(place, region, binary)) for place in outputs]
            if region is not None:
                self._count_while_held(region)
            call.put((outputs, is_end))
        except Exception as error:
            if call is not None:
                call.put(self._failure(f"its response cannot be read: {last_line(error)}", 500))

    def _input(self, place, region, binary):
        """Returns an input as an array, which shares the region's memory or has its own bytes."""
        np = self._tensors.np
        offset, length, datatype, shape = place["offset"], place["length"], place["datatype"], place["shape"]
        if datatype == "BYTES":
            raw = memoryview(region.memory)[offset : offset + length] if region is not None else binary[offset : offset + length]
            return self._tensors.decode_strings(raw, shape)
        dtype = self._tensors.dtype_of(datatype)
        if length == 0:
            return np.zeros(shape, dtype)
        if region is not None:
            return np.frombuffer(region.memory, dtype, length // dtype.itemsize, offset).reshape(shape)
        own = bytearray if self._model.may_write_inputs else bytes
        return np.frombuffer(own(binary[offset : offset + length]), dtype).reshape(shape)

    def _place(self, outputs, region, number):
        """Returns where the outputs are. Outputs that share memory with the inputs stay there; all others are sent or
        copied once."""
        begin = end = 0
        if region is not None:
            np = self._tensors.np
            begin = np.frombuffer(region.memory, np.uint8, 1).__array_interface__["data"][0]
            end = begin + region.length
        places, whole, room = [], 0, 0
        for name, datatype, array in outputs:
            raw = self._tensors.encode_strings(array) if datatype == "BYTES" else None
            length = array.nbytes if raw is None else len(raw)
            whole += length
            if begin and raw is None and length and array.flags.c_contiguous:
                at = array.__array_interface__["data"][0]
                if begin <= at < end:
                    places.append((name, datatype, array, None, length, at - begin))
                    continue
            places.append((name, datatype, array, raw, length, None))
            room += length + -length % _REGION_ALIGNMENT
        if whole > self._max_answer:
            raise Refused(f"its response has {whole} bytes, more than the {self._max_answer} that a worker may send")
        is_in_region = room > _MOST_IN_FRAME and sys.platform == "linux"
        if is_in_region:
            self._make_room(room, number)
        placed, parts, offset = [], [], 0
        shared = "inputs" if self._model.may_write_inputs else "request"
        for name, datatype, array, raw, length, at in places:
            if at is not None:
                place = shared
            elif is_in_region:
                place, at = "region", offset
                self._copy(array, raw, at, length)
                offset += length + -length % _REGION_ALIGNMENT
            else:
                place, at = "frame", offset
                parts.append(array.tobytes() if raw is None else raw)
                offset += length
            shape = ",".join(map(str, array.shape))
            placed.append(
                f'{{"name":{self._quoted(name)},"datatype":"{datatype}","shape":[{shape}],"place":"{place}","offset":{at},'
                f'"length":{length}}}'
            )
        return ",".join(placed), parts

    def _quoted(self, name):
        quoted = self._names.get(name)
        if quoted is None:
            quoted = self._names[name] = _encode(name)
        return quoted

    def _make_room(self, room, number):
        if self._outputs is None or self._outputs.length < room:
            self._outputs = None
            self._connection.send(ROOM, number, {"bytes": room})
            kind, _, message, _ = self._next()
            if kind != REGION:
                raise Ended
            self._map(message)

    def _copy(self, array, raw, offset, length):
        memory = self._outputs.memory
        if raw is not None:
            memory[offset : offset + length] = raw
        elif length:
            np = self._tensors.np
            room_for_it = np.frombuffer(memory, array.dtype, array.size, offset)
            np.copyto(room_for_it.reshape(array.shape), array)

    def finish(self):
        if self._model is not None:
            self._model.finish()


def last_line(error):
    """Returns the last line of a traceback, with the type and the message of the error, in bounded length."""
    said = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, SyntaxError):
        # The lines before it give the position in the source; the log has them.
        said = said.splitlines()[-1]
    line = " ".join(said.split("\n"))
    return line if len(line) <= 500 else line[:500] + "..."


def traceback_of(error):
    """Returns the traceback without the frames that lead to the model's code; of a very long one, the beginning and the
    end."""
    frames = error.__traceback__
    ours = ("<tensorferry", *asyncio.__path__, *concurrent.futures.__path__)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    except MemoryError:
        text = f"{type(error).__name__}, and not enough memory for its traceback"
    raw = text.encode(errors="backslashreplace")
    if len(raw) > _MOST_DETAILS:
        most = _MOST_DETAILS // 4
        first, last = (part.decode(errors="ignore") for part in (raw[:most], raw[-3 * most :]))
        text = f"{first}\n... {len(raw) - 4 * most} bytes are left out ...\n{last}"
    return text


def log_traceback(error):
    """Writes the traceback to the log, if no request fails with the error."""
    sys.stderr.write(traceback_of(error))
    sys.stderr.flush()


def _settle():
    """Makes the process behave well among others. The worker also works without this."""
    for number in _ENDING:
        # Ignored or blocked signals would be inherited by programs that the model starts, which could not be ended
        # then.
        signal.signal(number, _pass_over)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    os.register_at_fork(after_in_child=_settle_child)
    if sys.platform != "linux":
        return
    for path, content in (("/proc/self/oom_score_adj", "800"), ("/proc/self/comm", "oip-python")):
        try:
            with open(path, "w") as file:
                file.write(content)
        except OSError:
            pass
    try:
        import ctypes

        # The thread that started this process lives as long as the model.
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def _pass_over(number, frame):
    pass


def _settle_child():
    """Resets a process that a model forks: signals end it, and it does not talk to the server."""
    global _is_forked
    _is_forked = True
    for number in _ENDING:
        if signal.getsignal(number) is _pass_over:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for each in list(_sockets):
        each.close()


def _limit_memory(limit):
    if limit is None:
        return
    import resource

    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, maximum = resource.getrlimit(kind)
    limit = limit if maximum == resource.RLIM_INFINITY else min(limit, maximum)
    resource.setrlimit(kind, (limit, limit))


class EventLoop:
    """Runs coroutines concurrently in one thread. As in Triton, the loop does not stop between requests: tasks that a
    coroutine has started, such as those that send responses, continue after it has returned."""

    def __init__(self, loop):
        self._loop = loop

    def serve(self):
        """Runs the thread."""
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException as error:
                # `sys.exit` in a task would end the loop.
                log_traceback(error)
                # The traceback refers to the task, and would keep its response sender alive until a garbage collection.
                error.__traceback__ = None

    def end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)

    def generation(self, answers):
        return Generation(self._loop, answers)

    def wait_for(self, awaited, on_begun=None):
        """Waits for a coroutine, and returns its result or raises its exception. Calls `on_begun` once the coroutine waits
        for something or is done."""

        async def run():
            if on_begun is not None:
                self._loop.call_soon(on_begun)
            try:
                return await awaited, None
            except BaseException as error:
                # Some exceptions would end the loop, or look like a cancellation of the waiting thread.
                return None, error

        result, error = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        if error is None:
            return result
        try:
            raise error
        finally:
            # The traceback contains this frame: the cycle would keep the model's inputs alive until a garbage
            # collection.
            error = None


class Generation:
    """An asynchronous generator that one task runs from its first step to its end, as in an `async for` loop, so that
    `asyncio.timeout`, task groups and context variables work across its `yield`s. Another thread requests each step."""

    def __init__(self, loop, answers):
        self._loop, self._answers = loop, answers
        self._task = None
        #: The requested step, and the future by which the task waits for it.
        self._order = self._waiter = None
        self._is_stepping = self._is_cancelled = False

    def step(self, on_begun=None):
        """Returns the next item, or raises the generator's exception. Calls `on_begun` once the generator waits for
        something or is done."""
        return self._ask(True, on_begun)

    def close(self):
        self._ask(False, None)

    def cancel(self):
        """Cancels the current step, from any thread; no other step follows."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self):
        self._is_cancelled = True
        if self._is_stepping:
            self._task.cancel()

    def _ask(self, is_step, on_begun):
        future = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._put, (is_step, on_begun, future))
        result, error = future.result()
        # Tracebacks contain this frame.
        del future
        if error is None:
            return result
        try:
            raise error
        finally:
            error = None

    def _put(self, order):
        self._order = order
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self):
        is_step, cancelled = True, None
        while is_step:
            while self._order is None:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                except asyncio.CancelledError as error:
                    # Something that the generator has open around its `yield`, such as a timeout, has cancelled it:
                    # raise the error at the `yield`.
                    cancelled = error
            (is_step, on_begun, future), self._order, self._waiter = self._order, None, None
            if on_begun is not None:
                self._loop.call_soon(on_begun)
            thrown, cancelled = cancelled, None
            future.set_result(await self._outcome(is_step, thrown))
            del on_begun, future, thrown
        self._task = None

    async def _outcome(self, is_step, thrown):
        """Returns the result of a step and its exception, which is not raised: some exceptions would end the loop, or look
        like a cancellation of the waiting thread."""
        self._is_stepping = is_step
        try:
            if not is_step:
                return await self._answers.aclose(), None
            if self._is_cancelled:
                raise StopAsyncIteration
            if thrown is not None:
                return await self._answers.athrow(thrown), None
            return await self._answers.__anext__(), None
        except BaseException as error:
            return None, error
        finally:
            self._is_stepping = False
            del thrown


class Functions:
    """Runs functions one after the other in one thread."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()

    def serve(self):
        """Runs the thread."""
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self._run(job)

    @staticmethod
    def _run(job):
        future, context, function, arguments = job
        try:
            result, error = context.run(function, *arguments), None
        except BaseException as raised:
            result, error = None, raised
        # Drop these references, so that objects end with the model's last reference to them.
        job.clear()
        del context, function, arguments
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        # The error's traceback contains this frame.
        del future, error

    def end(self):
        self._jobs.put(None)

    def call(self, function, *arguments):
        """Calls a function in the thread, and returns its result or raises its exception."""
        future = concurrent.futures.Future()
        self._jobs.put([future, contextvars.copy_context(), function, arguments])
        del arguments
        return future.result()


class Beside:
    """The concurrent requests of a model. Each worker has a connection and a thread, and runs one request at a time."""

    def __init__(self, first, main, control):
        self._first, self._main, self._control = first, main, control
        self._changing = threading.Lock()
        self._workers = set()
        #: A worker whose thread waits for its connection, and the queue that wakes the thread. The server sends one
        #: connection at a time.
        self._parked = None
        self._parking = threading.Lock()
        self._has_warned = False

    def start(self):
        """Starts the thread of the first worker."""
        self._first.make_ready = self._make_ready
        self._workers.add(self._first)
        ready = queue.SimpleQueue()
        ready.put(None)
        start_thread(self._serve, self._first, ready)

    def _make_ready(self):
        """Returns whether there is a thread, with its memory, for the next connection. If not, the server is not told to
        send one."""
        with self._parking:
            if self._parked is None:
                try:
                    # Checks that a file descriptor is free for the connection.
                    os.close(os.dup(0))
                    worker, ready = self._first.beside(Connection()), queue.SimpleQueue()
                    worker.make_ready = self._make_ready
                    start_thread(self._serve, worker, ready)
                except (OSError, RuntimeError, MemoryError) as error:
                    self._warn(error)
                    return False
                self._parked = (worker, ready)
            return True

    def _warn(self, error):
        if self._has_warned:
            return
        self._has_warned = True
        sys.stderr.write(f"\x1eWthe process begins no further request next to those that it has, now and maybe later: {last_line(error)}\n")
        sys.stderr.flush()

    def connect(self, data):
        """Accepts another connection from the server."""
        with self._parking:
            parked, self._parked = self._parked, None
        if parked is None:
            raise RuntimeError("the server sent a connection that it was not asked for")
        worker, ready = parked
        worker.attach(data)
        with self._changing:
            self._workers.add(worker)
        ready.put(None)

    def lender(self):
        """Returns the worker and the number of a request in progress, for a call from code that does not know its own
        request; None if no request is in progress.

        It selects the oldest request. If that request ends before the call does, the call is repeated for the next one.
        Younger requests are not selected, so the repetition ends at the latest with the request that the call belongs
        to.
        """
        with self._changing:
            answering = [(worker.is_full(), worker.answers(), worker) for worker in self._workers]
        answering = [found for found in answering if found[1] is not None]
        if not answering:
            return None
        _, number, worker = min(answering, key=lambda found: found[:2])
        return worker, number

    def _serve(self, worker, ready):
        """Runs a worker's thread."""
        ready.get()
        try:
            worker.serve()
        except Ended:
            pass
        except SystemExit as error:
            sys.stdout.flush()
            os._exit(error.code if isinstance(error.code, int) else 0 if error.code is None else 1)
        except BaseException as error:
            log_traceback(error)
            os._exit(1)
        worker.close()
        try:
            # Tells a server that abandoned the request that it has ended.
            self._control.send(_NUMBER.pack(worker.last), socket.MSG_DONTWAIT)
        except OSError:
            pass
        with self._changing:
            self._workers.discard(worker)
            is_over = not self._workers
        if is_over:
            self._main.end()


class Control:
    """Reads the numbers of cancelled requests, and accepts connections, until the server closes the socket."""

    #: Accepts a connection.
    connect = None

    def __init__(self, control, cancelled):
        self._control, self._cancelled = control, cancelled
        self._received = b""

    def listen(self):
        """Runs the thread. Without it no cancellation would reach the model, so it ends only with the server."""
        while True:
            try:
                if not self._hear():
                    break
            except OSError:
                break
            except Exception as error:
                self._log(error)
        time.sleep(_FAREWELL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _hear(self):
        part, files, _, _ = socket.recv_fds(self._control, 4096, 16)
        if not part:
            return False
        for file in files:
            self._take(file)
        received = self._received + part
        whole = len(received) - len(received) % _NUMBER.size
        self._received = received[whole:]
        for (number,) in _NUMBER.iter_unpack(received[:whole]):
            if number != _CONNECTION:
                self._cancelled.note(number)
        return True

    def _take(self, file):
        data = None
        try:
            # Programs that the model starts must not inherit the descriptor.
            os.set_inheritable(file, False)
            data = socket.socket(fileno=file)
            self.connect(data)
        except Exception as error:
            # The server notices that its end is closed.
            os.close(file) if data is None else data.close()
            self._log(error)

    @staticmethod
    def _log(error):
        try:
            log_traceback(error)
        except Exception:
            # There is no memory for the message either.
            pass


def main(data, control, install):
    _settle()
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    # A repository that is polled for changes must not change when its code runs.
    sys.dont_write_bytecode = True
    cancelled = install("tensorferry_model")._cancelled
    connection = Connection(data)
    listener = Control(control, cancelled)
    _sockets.add(control)
    worker = None
    try:
        connection.send(HELLO, 0, {"protocol": VERSION, "places": True})
        start_thread(listener.listen)
        kind, _, order, content = connection.frame()
        if kind != LOAD:
            raise Ended
        try:
            _limit_memory(order["memory_limit"])
            try:
                tensors = install("tensorferry_tensors")
            except ImportError as error:
                if error.name != "numpy":
                    raise
                raise Refused(f"its Python, {sys.executable}, has no numpy, which models in Python need: pip install numpy", 400)
            calls = install("tensorferry_calls")
            worker = Worker(connection, tensors, calls, cancelled)
            calls._lender = lambda: (worker, None)
            worker.load(order, bytes(content), install("tensorferry_forms").model_of)
        except Refused as refusal:
            connection.fail(0, refusal, refusal.status, refusal.details)
            return
        except SystemExit as error:
            connection.fail(0, f"its model.py ended the process: {last_line(error)}", 400, traceback_of(error))
            return
        except BaseException as error:
            # Names the Python, because a missing package is often installed in a different one.
            where = f" (its Python is {sys.executable})" if isinstance(error, ModuleNotFoundError) else ""
            connection.fail(0, f"its model.py cannot be loaded: {last_line(error)}{where}", 400, traceback_of(error))
            return
        runs_beside, loop = worker.runs_beside()
        if not runs_beside:
            worker.serve()
        # Models expect their code to run in the main thread.
        main_thread = Functions() if loop is None else EventLoop(loop)
        worker.set_main(main_thread)
        beside = Beside(worker, main_thread, control)
        listener.connect = beside.connect
        calls._lender = beside.lender
        calls.hand_on()
        beside.start()
        main_thread.serve()
        worker.finish()
    except Ended:
        if worker is not None:
            worker.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exits without cleanup, since libraries may hang when a process ends.
    os._exit(0)
