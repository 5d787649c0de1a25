"""Simulate a slow network between the processes of one machine: MPI's reductions end later.

A step calls the functions below instead of MPI's of the same names.  They start and test the
reduction of MPI, and report its end only when a network would have carried it: after the reductions
before it, the bytes of a ring at the network's bandwidth, and the latency of its messages (as in
docs/distributed.md).  This needs neither root nor a kernel that delays packets, and leaves out the
processor time for packets.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

from minigraph.devices.cpu import collective

TEXT = """
#include <stdint.h>
#include <time.h>
enum { FLIGHTS = 4096 };
static struct { void *request; int64_t due; int landed; } flights[FLIGHTS];
static int64_t network_is_free;
/* Set by Python: MPI's functions, and the time that the network takes for a message and a byte. */
int (*begin)(void *, void *, int, void *, void *, void *, void *);
int (*test)(void *, int *, void *);
int (*size_of)(void *, int *);
double latency, nanoseconds_per_byte;
int64_t messages;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static int find(void *request) {
  int i = 0;
  while (flights[i].request && flights[i].request != request)
    if (++i == FLIGHTS) __builtin_trap();
  return i;
}
int MPI_Iallreduce(void *x, void *y, int n, void *type, void *op, void *comm, void *request) {
  const int i = find(request);
  int size;
  size_of(type, &size);
  if (network_is_free < now()) network_is_free = now();
  network_is_free += n * (double)size * nanoseconds_per_byte;
  flights[i].request = request;
  flights[i].due = network_is_free + messages * latency;
  flights[i].landed = 0;
  return begin(x, y, n, type, op, comm, request);
}
int MPI_Test(void *request, int *landed, void *status) {
  const int i = find(request);
  if (!flights[i].landed) {
    const int error = test(request, &flights[i].landed, status);
    if (error) return error;
  }
  *landed = flights[i].landed && now() >= flights[i].due;
  return 0;
}
"""


def connect(world, bandwidth, latency):
    """Make functions compiled from now on reduce as over a slow network.

    bandwidth  bytes a second
    latency    seconds of a message
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "link.c").write_text(TEXT)
        command = ["cc", "-O1", "-shared", "-fPIC", "link.c", "-o", "link.so"]
        subprocess.run(command, cwd=folder, check=True)
        link = ctypes.CDLL(f"{folder}/link.so")
    original = collective._function
    pointers = {"begin": "MPI_Iallreduce", "test": "MPI_Test", "size_of": "MPI_Type_size"}
    for name, function in pointers.items():
        ctypes.c_void_p.in_dll(link, name).value = original(world, function)
    ring = 2 * (world.size - 1)
    ctypes.c_int64.in_dll(link, "messages").value = ring
    ctypes.c_double.in_dll(link, "latency").value = latency * 1e9
    per_byte = ring / world.size / bandwidth * 1e9
    ctypes.c_double.in_dll(link, "nanoseconds_per_byte").value = per_byte

    def function(world, name):
        if name in ("MPI_Iallreduce", "MPI_Test"):
            return ctypes.cast(link[name], ctypes.c_void_p).value
        return original(world, name)

    collective._function = function
