"""One model for a server: loaded from what the server sends, run one request at a time, or, where the model goes on with some after it
was given them, several.

The other side is the crate oip-worker, whose page has the protocol. Nothing here may be imported before the server was greeted,
but for the standard library, so that whatever is missing can be told.
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
#: Stands there for a connection, whose file comes with it.
_CONNECTION = (1 << 64) - 1

_HEAD = struct.Struct("<IIQQ")
#: As a number: the enumeration's own `&` runs Python code for each message.
_TRUNCATED = int(socket.MSG_CTRUNC)
#: Reads JSON without looking for spaces before and after it.
_scan = json.JSONDecoder().scan_once
_encode = json.JSONEncoder(separators=(",", ":")).encode
_ALIGNMENT = 16
_REGION_ALIGNMENT = 64
#: Bytes of outputs up to which they are sent behind the JSON.
_MOST_IN_FRAME = 64 << 10
#: What is read at once: a frame of usual size.
_BUFFER = 256 << 10
#: Bytes of the two regions of a connection that are used again.
_KEPT = 112 << 20
#: Stack of the threads that speak to the server. The system's own is 8 MiB, which a memory limit counts in full.
_STACK = 512 << 10
#: What a service manager sends to all processes of a service; the server says when this one is to end.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Requests to other models that one request may have open.
_MOST_CALLS = 256
#: Characters of a traceback that are sent to the log.
_MOST_DETAILS = 60 << 10
#: How long a model may take to finish when the server wants no more of it.
_FAREWELL = 1.0


class Ended(Exception):
    """The server has closed the connection."""


class Refused(Exception):
    """What the server is told instead of an answer."""

    def __init__(self, message, status=500, details=None):
        super().__init__(message)
        self.status = status
        #: A traceback for the server's log.
        self.details = details


def _failure(refusal):
    """What the server is told. Messages come from models, and may hold what no text can."""
    status = refusal.status
    is_status = isinstance(status, int) and 400 <= status < 600
    message = str(refusal).encode("utf-8", "replace").decode()
    failed = {"status": status if is_status else 500, "message": message[:2000]}
    if refusal.details:
        failed["details"] = refusal.details.encode("utf-8", "backslashreplace").decode()
    return failed


#: The sockets to the server, which processes that a model forks must not have.
_sockets = set()
#: Whether a model has forked this process off its own.
_is_forked = False
#: Held while a thread is started: the size of stacks is one for the whole process.
_starting = threading.Lock()


def start_thread(function, *arguments):
    """Starts a thread with a small stack, which is for what is here and not for models.

    Not by `threading.Thread`, whose `start` waits for the thread: models' threads that start meanwhile would get a small stack too.
    """
    with _starting:
        before = threading.stack_size(_STACK)
        try:
            _thread.start_new_thread(function, arguments)
        finally:
            threading.stack_size(before)


class Connection:
    """Frames on a socket. One thread at a time receives, any number may send."""

    def __init__(self, data=None):
        self._socket = None
        #: Frames of several threads do not mix.
        self._sending = threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self._files = []
        if data is not None:
            self.attach(data)

    def attach(self, data):
        """Gives it its socket, where that comes later than its memory."""
        self._socket = data
        _sockets.add(data)

    def _fill(self, view):
        try:
            received, ancillary, flags, _ = self._socket.recvmsg_into([view], 256)
        except ConnectionError:
            # A model may have connections too; only this one's end is the worker's.
            raise Ended from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % 4
                self._files.extend(struct.unpack(f"{whole // 4}i", content[:whole]))
        if flags & _TRUNCATED:
            # The process has no number left for a file.
            self._files.append(None)
        if received == 0:
            raise Ended
        return received

    def _peek(self, count):
        """So many bytes of the buffer, which they fit."""
        if self._end - self._start < count:
            if self._start + count > _BUFFER:
                left = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(left)] = left
                self._start, self._end = 0, len(left)
            while self._end - self._start < count:
                self._end += self._fill(self._buffer[self._end :])
        return self._buffer[self._start : self._start + count]

    def take(self, count):
        """The next bytes: part of the buffer where they fit it, which are gone with the next call, or bytes of their own."""
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
        """The next frame: kind, number, what its JSON says, and its binary part as a view that the next call overwrites."""
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
        """Tells why there is no answer."""
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
    """The outputs for several requests that were joined into one, and what to tell those that failed."""

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
        #: References to the memory when nobody else looks at it.
        self.references = sys.getrefcount(self.memory)

    def is_held(self):
        return sys.getrefcount(self.memory) > self.references


class Worker:
    def __init__(self, connection, tensors, calls, cancelled):
        self._connection = connection
        self.calls = calls
        self._tensors = tensors
        self._cancelled = cancelled
        #: Held by what uses the region for outputs, and by what waits for the server: a model may have threads.
        self._turn = threading.Lock()
        #: Whether a thread reads what the server says, from the first request to another model on: its answers come at any time.
        self._has_reader = False
        #: What threads do from then on, without those that were started.
        self._not_started = [Worker._keep_telling, Worker._read]
        #: What the reader leaves to others, None at the end.
        self._frames = queue.SimpleQueue()
        #: The request that is being answered, and what it asks of other models, by number.
        self._current = None
        self._calls = {}
        #: Whether no more is asked for it: its answer is on its way.
        self._is_ending = False
        #: The request that the server is to be told of when another can be begun beside it.
        self._blocking = None
        self._freeing = threading.Lock()
        #: Whether there are others beside this one.
        self._is_beside = False
        #: Makes ready for a connection by which another request comes, and tells whether it can come.
        self.make_ready = lambda: True
        #: The request that was run last.
        self.last = 0
        self._last_call = 0
        #: Calls that a garbage collection found to be given up, and what wakes the thread that tells the server. A collection may
        #: run in the middle of anything, so noting a call takes no lock; taking one out does, until the server was told of it.
        self._left = collections.deque()
        self._has_left = queue.SimpleQueue()
        self._telling = threading.Lock()
        self._model = None
        self._max_answer = 0
        self._limit = None
        self._inputs = None
        self._outputs = None
        #: Whether the inputs of the current request are in their region.
        self._is_in_region = False
        #: Bytes of the regions that are not used again, as long as a model holds on to their memory.
        self._held = {}
        #: Why the last region for inputs could not be mapped.
        self._unmapped = None
        #: Names of outputs as JSON has them.
        self._names = {}

    def load(self, order, content, model_of):
        self._max_answer = order["max_answer_bytes"]
        self._limit = order["memory_limit"]
        self._model = model_of(order, content)
        self._connection.send(LOADED, 0, self._model.about())

    def beside(self, connection):
        """A worker for the same model, with a connection of its own."""
        other = Worker(connection, self._tensors, self.calls, self._cancelled)
        other._max_answer, other._limit, other._model = self._max_answer, self._limit, self._model
        other._is_beside = True
        return other

    def runs_beside(self):
        """Whether its model is run for several requests at once, and the event loop that it has."""
        self._is_beside = self._model.runs_beside
        return self._is_beside, getattr(self._model, "loop", None)

    def set_main(self, main):
        self._model.main = main

    def attach(self, data):
        self._connection.attach(data)

    def close(self):
        self._connection.close()

    def answers(self):
        """The request that is being answered and not cancelled, or None."""
        current = self._current
        return None if current is None or self._is_ending or current in self._cancelled else current

    def is_full(self):
        """Whether its request cannot ask any more now."""
        return len(self._calls) >= _MOST_CALLS

    def _next(self):
        """The next frame that is no answer of another model."""
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
                failed = (f"its answer cannot be sent: {last_line(error)}", 500, traceback_of(error))
                results = None
            finally:
                self._end_request()
                self._cancelled.forget(number)
            if results is None:
                # Without what the exception held on to: it was dropped when its clause ended.
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
        """Lets go of the regions that the server does not use again either."""
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
            # Told when a request needs them.
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
        """Shared memory is not under the limit of the process, so what a model holds of it is counted. Its arrays alone keep it
        alive, and the last of them takes it out of the count: `dict.pop` may interrupt anything, in any thread."""
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
        # A small allocation that failed means that nearly all is taken; a large one may just have been too large.
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
            # Of joined requests some may have failed.
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
        """Tells the server that the model can be given another request while it goes on with this one."""
        with self._freeing:
            if self._blocking == number and self.make_ready():
                self._blocking = None
                try:
                    self._connection.send(FREE, number, {})
                except (Ended, OSError):
                    # The thread of the request finds out.
                    pass

    def _give(self, number, region, outputs, is_last):
        """Sends one of several answers, waits until the server has taken it, and tells whether another one is wanted."""
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
            # The server has given up this request, and not the model.
            is_wanted = False
        if not is_wanted:
            self._cancelled.note(number)
        return is_wanted

    def ask(self, message, tensors, call, request):
        """Asks another model for the request with this number, or, if that is None, for the one that is being answered. Returns the number
        of the call, whose answers are `put`."""
        if _is_forked:
            # Before any lock, which a thread of the parent may have held.
            raise self._failure("a process that the model has forked cannot ask other models: let its parent ask", 501)
        try:
            return self._ask(message, tensors, call, request)
        except Ended:
            if not self._is_beside:
                raise
            # The server has given it up.
            self._cancelled.note(request)
            raise self._over() from None

    def _ask(self, message, tensors, call, request):
        with self._turn:
            if request is not None and (request != self._current or self._is_ending):
                raise self._over()
            if self._current is None:
                raise self._failure("other models can be asked only while a request is answered", 503)
            self._tell_left()
            if len(self._calls) >= _MOST_CALLS:
                raise self._failure(f"a request may ask {_MOST_CALLS} times at once, and no more", 429)
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
                # The region is used again, and the model may change its inputs.
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
        # Told first: the server has never more calls open than are counted here.
        if number in self._calls:
            self._say_next(number, False)
            self._calls.pop(number, None)

    def leave_later(self, number):
        """The same from a garbage collection, which may be in the middle of all else here."""
        self._left.append(number)
        self._has_left.put(None)

    def _tell_left(self):
        with self._telling:
            while self._left:
                self.leave(self._left.popleft())

    def _keep_telling(self):
        """The life of the thread that tells of them while the model waits, maybe for what they occupy."""
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
            # The server has given up the request, and what it asked with it.
            self._cancelled.note(current)

    def _end_request(self):
        """The request is answered: the server drops what it has asked and not waited for."""
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
        """The life of the reader."""
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
        # Of several connections only this one is closed: its request was given up.
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
                # It was given up meanwhile.
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
                call.put(self._failure(f"its answer cannot be read: {last_line(error)}", 500))

    def _input(self, place, region, binary):
        """An input as an array: over shared memory, or over bytes of its own."""
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
        """Where the outputs are: what they share with the inputs stays there, all else is sent or copied once."""
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
            raise Refused(f"its answer has {whole} bytes, more than the {self._max_answer} that a worker may send")
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
    """What a traceback ends with: the type and the message, in one line of bounded length."""
    said = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, SyntaxError):
        # Before it come the place and the line, which the log has.
        said = said.splitlines()[-1]
    line = " ".join(said.split("\n"))
    return line if len(line) <= 500 else line[:500] + "..."


def traceback_of(error):
    """The traceback without the frames that lead to the model; of a very long one the beginning and the end."""
    frames = error.__traceback__
    ours = ("<tensorferry", *asyncio.__path__, *concurrent.futures.__path__)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    except MemoryError:
        text = f"{type(error).__name__}, and no memory for its traceback"
    raw = text.encode(errors="backslashreplace")
    if len(raw) > _MOST_DETAILS:
        most = _MOST_DETAILS // 4
        first, last = (part.decode(errors="ignore") for part in (raw[:most], raw[-3 * most :]))
        text = f"{first}\n... {len(raw) - 4 * most} bytes are left out ...\n{last}"
    return text


def log_traceback(error):
    """Writes it to the log as lines, where there is no request that fails with it."""
    sys.stderr.write(traceback_of(error))
    sys.stderr.flush()


def _settle():
    """What makes a process a good neighbour; none of it is needed to work."""
    for number in _ENDING:
        # Ignored, or blocked, they would be so in the programs that a model starts too, which could not be ended then.
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

        # The thread that started this process lives as long as the model does.
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def _pass_over(number, frame):
    pass


def _settle_child():
    """What a model forks is its own process: it ends by signals, and does not speak to the server."""
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
    """Runs coroutines at once, in one thread. As in Triton it does not stop between requests: what they have begun, such as tasks
    that give the answers, goes on when they have returned."""

    def __init__(self, loop):
        self._loop = loop

    def serve(self):
        """The life of the thread."""
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException as error:
                # `sys.exit` in a task, which would end the loop.
                log_traceback(error)
                # Its frames lead back to the task, which would keep its response sender until a garbage collection.
                error.__traceback__ = None

    def end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)

    def generation(self, answers):
        return Generation(self._loop, answers)

    def wait_for(self, awaited, on_begun=None):
        """What a coroutine gives, or raises. `on_begun` is called once it waits for something, or is done."""

        async def run():
            if on_begun is not None:
                self._loop.call_soon(on_begun)
            try:
                return await awaited, None
            except BaseException as error:
                # Some exceptions would end the loop, or be taken for a cancellation of what waits here.
                return None, error

        result, error = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        if error is None:
            return result
        try:
            raise error
        finally:
            # Its traceback has this frame: together they would keep the model's inputs until a garbage collection.
            error = None


class Generation:
    """An asynchronous generator, which one task runs from its first step to its end, as in a loop of `async for`: `asyncio.timeout`,
    task groups and context variables hold across its `yield`s. Another thread asks for each step."""

    def __init__(self, loop, answers):
        self._loop, self._answers = loop, answers
        self._task = None
        #: What is asked for, and what the task waits by for that.
        self._order = self._waiter = None
        self._is_stepping = self._is_cancelled = False

    def step(self, on_begun=None):
        """What it gives next, or raises. `on_begun` is called once it waits for something, or is done."""
        return self._ask(True, on_begun)

    def close(self):
        self._ask(False, None)

    def cancel(self):
        """Cancels the step that it is at, from any thread; there is no other one then."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self):
        self._is_cancelled = True
        if self._is_stepping:
            self._task.cancel()

    def _ask(self, is_step, on_begun):
        future = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._put, (is_step, on_begun, future))
        result, error = future.result()
        # Tracebacks have this frame.
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
                    # By what the generator has open around its `yield`, such as a timeout: it gets it there.
                    cancelled = error
            (is_step, on_begun, future), self._order, self._waiter = self._order, None, None
            if on_begun is not None:
                self._loop.call_soon(on_begun)
            thrown, cancelled = cancelled, None
            future.set_result(await self._outcome(is_step, thrown))
            del on_begun, future, thrown
        self._task = None

    async def _outcome(self, is_step, thrown):
        """What a step gives, and what it raises: some exceptions would end the loop, or be taken for a cancellation of who waits."""
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
    """Runs functions one after the other, in one thread."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()

    def serve(self):
        """The life of the thread."""
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
        # What only the model holds on to from here on is gone with it.
        job.clear()
        del context, function, arguments
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        # The error's traceback has this frame.
        del future, error

    def end(self):
        self._jobs.put(None)

    def call(self, function, *arguments):
        """What a function gives, or raises."""
        future = concurrent.futures.Future()
        self._jobs.put([future, contextvars.copy_context(), function, arguments])
        del arguments
        return future.result()


class Beside:
    """The requests that a model answers at once: each worker has a connection and a thread, and runs one at a time."""

    def __init__(self, first, main, control):
        self._first, self._main, self._control = first, main, control
        self._changing = threading.Lock()
        self._workers = set()
        #: A worker whose thread waits for its connection, and what wakes it. The server gives away one connection at a time.
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
        """Whether there is a thread, with its memory, for the next connection: where there is none the server is not told to send one."""
        with self._parking:
            if self._parked is None:
                try:
                    # The connection is a file.
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
        sys.stderr.write(f"\x1eWthe process begins no further request beside those that it has, now and maybe later: {last_line(error)}\n")
        sys.stderr.flush()

    def connect(self, data):
        """Takes another connection of the server's."""
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
        """The worker and the number of a request that somebody waits for, for a call of code that knows none; None if there is none.

        It is the oldest one. A call whose request ends before it is made again for the next one, and younger ones are not counted on, so
        that ends, at the latest with the request that it is for.
        """
        with self._changing:
            answering = [(worker.is_full(), worker.answers(), worker) for worker in self._workers]
        answering = [found for found in answering if found[1] is not None]
        if not answering:
            return None
        _, number, worker = min(answering, key=lambda found: found[:2])
        return worker, number

    def _serve(self, worker, ready):
        """The life of a worker's thread."""
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
            # For a server that has given up what it ran.
            self._control.send(_NUMBER.pack(worker.last), socket.MSG_DONTWAIT)
        except OSError:
            pass
        with self._changing:
            self._workers.discard(worker)
            is_over = not self._workers
        if is_over:
            self._main.end()


class Control:
    """Reads numbers of requests that are cancelled, and takes connections, until the server is gone."""

    #: Takes a connection.
    connect = None

    def __init__(self, control, cancelled):
        self._control, self._cancelled = control, cancelled
        self._received = b""

    def listen(self):
        """The life of the thread. Without it no cancellation would reach the model, so nothing but the server's end ends it."""
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
            # Not for programs that the model starts.
            os.set_inheritable(file, False)
            data = socket.socket(fileno=file)
            self.connect(data)
        except Exception as error:
            # The server sees the end of it.
            os.close(file) if data is None else data.close()
            self._log(error)

    @staticmethod
    def _log(error):
        try:
            log_traceback(error)
        except Exception:
            # No memory for that either.
            pass


def main(data, control, install):
    _settle()
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    # A repository that is looked at for changes is not to be changed by being run.
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
            # Which Python it is missing from: a package is often installed in another one.
            where = f" (its Python is {sys.executable})" if isinstance(error, ModuleNotFoundError) else ""
            connection.fail(0, f"its model.py cannot be loaded: {last_line(error)}{where}", 400, traceback_of(error))
            return
        runs_beside, loop = worker.runs_beside()
        if not runs_beside:
            worker.serve()
        # What models expect of the main thread.
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
    # What libraries do at the end of a process can hang.
    os._exit(0)
