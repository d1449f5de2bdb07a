"""Runs checks by group and client, and prints a table of the results."""

import traceback


class Report:
    """Runs checks one by one, and records their results."""

    def __init__(self, only, is_verbose):
        self._only = only
        self._is_verbose = is_verbose
        self._results = {}
        self._clients = []

    def check(self, group, client, name, function):
        """Runs one check, which fails by raising an exception."""
        full_name = f"{group} / {client} / {name}"
        if self._only and self._only not in full_name:
            return
        if client not in self._clients:
            self._clients.append(client)
        passed, total = self._results.get((group, client), (0, 0))
        try:
            function()
            passed += 1
            if self._is_verbose:
                print(f"ok      {full_name}")
        except Exception as error:  # any exception of a client fails only this check
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:400]
            print(f"FAILED  {full_name}: {type(error).__name__}: {text} (line {place.lineno} of {place.name})")
        self._results[group, client] = passed, total + 1

    def add(self, lines):
        """Adds results of another process, as returned by `lines`."""
        for line in lines:
            group, client, passed, total = line.split("\t")
            if client not in self._clients:
                self._clients.append(client)
            before = self._results.get((group, client), (0, 0))
            self._results[group, client] = before[0] + int(passed), before[1] + int(total)

    def lines(self):
        """Returns the results for another process."""
        return [f"{group}\t{client}\t{passed}\t{total}" for (group, client), (passed, total) in self._results.items()]

    def print_table(self):
        """Prints the table. Returns true if all checks passed."""
        groups = list(dict.fromkeys(group for group, _ in self._results))
        width = max([len(group) for group in groups] + [5])
        print(f"\n{'':{width}}  " + "  ".join(f"{client:>16}" for client in self._clients))
        for group in groups:
            cells = []
            for client in self._clients:
                passed, total = self._results.get((group, client), (0, 0))
                cell = f"{passed}/{total}" if total else ""
                cells.append(f"{cell:>16}")
            print(f"{group:{width}}  " + "  ".join(cells))
        passed = sum(passed for passed, _ in self._results.values())
        total = sum(total for _, total in self._results.values())
        print(f"\n{passed} of {total} passed")
        return passed == total and total > 0


def expect(found, expected):
    """Fails unless both values are equal."""
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")
