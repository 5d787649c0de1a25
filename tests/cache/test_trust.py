"""Other users on the machine: whatever they may write, none of their code is loaded."""

import contextlib
import ctypes
import os
import pwd
import struct
import subprocess
import tempfile
import time
import types
import warnings
from pathlib import Path

import pytest
from long_runs import long
from needs import needs_compiler
from new_process import begin
from other_user import ME, OTHER, as_root, done_by, meanwhile

import minigraph as mg
from minigraph.cache import Entry, Store, file
from minigraph.devices.cpu import compiler, library
from minigraph.jit.source import KernelSource
from minigraph.platform import trust


@pytest.fixture
def root():
    """A folder of root's that all users reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


def folder(path, owner=ME, group=None, mode=0o700):
    """Make a folder, or a file's folder, as somebody made it."""
    path.mkdir()
    os.chown(path, owner, owner if group is None else group)
    path.chmod(mode)
    return path


def refusal(path):
    """Return why this user does not trust a folder, or an empty string."""
    try:
        trust.check_folder(path)
    except trust.Untrusted as error:
        return error.strerror
    return ""


# ---------------------------------------------------------------- who may change a folder


@as_root
@pytest.mark.parametrize("link", [0, ME, OTHER])
def test_of_the_links_in_a_shared_folder_those_of_others_are_not_followed(root, link):
    shared = folder(root / "shared", 0, 0, 0o1777)
    mine = folder(shared / "mine")
    for name, target in {"absolute": mine, "relative": "mine", "up": "../shared/./mine"}.items():
        (shared / name).symlink_to(target)
        os.lchown(shared / name, link, link)
        why = done_by(ME, lambda name=name: refusal(shared / name))
        assert why == (f"{shared / name} is a link of another user" if link == OTHER else "")


@as_root
def test_a_link_is_followed_into_no_folder_that_others_can_change(root):
    open_to_all = folder(root / "open", ME, ME, 0o777)
    folder(open_to_all / "mine")
    home = folder(root / "home")
    (home / "link").symlink_to(open_to_all / "mine")
    (home / "up").symlink_to("../open/mine/../../home")
    for name in ("link", "up"):
        why = done_by(ME, lambda name=name: refusal(home / name))
        assert why == f"{open_to_all} can be written by other users"


def test_links_that_lead_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        trust.check_folder(tmp_path / "a")


@as_root
def test_a_missing_folder_is_made_for_its_owner_alone_and_only_in_trusted_ones(root):
    shared = folder(root / "shared", 0, 0, 0o1777)

    def make():
        trust.check_folder(shared / "a" / "b", create=True)

    done_by(ME, make)
    for path in (shared / "a", shared / "a" / "b"):
        status = path.stat()
        assert (status.st_uid, status.st_mode & 0o7777) == (ME, 0o700)
    unsafe = folder(root / "unsafe", ME, ME, 0o777)
    with pytest.raises(AssertionError, match=r"Untrusted.*unsafe can be written by other users"):
        done_by(ME, lambda: trust.check_folder(unsafe / "a", create=True))
    assert not list(unsafe.iterdir())


# ---------------------------------------------------------------- a group of one's own


@pytest.fixture
def users(monkeypatch):
    """The users of the machine: ME, whose group has the same name, and OTHER in another one."""

    def user(name, number, group):
        return types.SimpleNamespace(pw_name=name, pw_uid=number, pw_gid=group)

    people = [user("me", ME, ME), user("other", OTHER, OTHER)]
    groups = {ME: types.SimpleNamespace(gr_name="me", gr_mem=["me"])}
    by_number = {found.pw_uid: found for found in people}
    monkeypatch.setattr(trust.pwd, "getpwuid", by_number.__getitem__)
    monkeypatch.setattr(trust.pwd, "getpwall", lambda: people)
    monkeypatch.setattr(trust.grp, "getgrgid", groups.__getitem__)
    trust._is_private_group.cache_clear()
    yield people, groups
    trust._is_private_group.cache_clear()


@as_root
def test_the_group_that_has_no_member_but_its_user_is_that_user(root, users):
    home = folder(root / "home", ME, ME, 0o775)
    assert done_by(ME, lambda: refusal(home)) == ""
    assert done_by(OTHER, lambda: refusal(home)) == f"{home} belongs to another user"


STRANGERS = {
    "a member": lambda people, groups: groups[ME].gr_mem.append("other"),
    "somebody's first group": lambda people, groups: setattr(people[1], "pw_gid", ME),
    "another name": lambda people, groups: setattr(groups[ME], "gr_name", "staff"),
    "not the first one": lambda people, groups: setattr(people[0], "pw_gid", 100),
    "no name": lambda people, groups: groups.clear(),
}


@as_root
@pytest.mark.parametrize("name", STRANGERS)
def test_a_group_that_others_may_be_in_is_not_that_user(root, users, name):
    home = folder(root / "home", ME, ME, 0o775)
    STRANGERS[name](*users)
    why = done_by(ME, lambda: refusal(home))
    assert why == f"{home} can be written by other users of its group"


@as_root
def test_a_group_with_an_access_list_is_not_that_user(root, users):
    home = folder(root / "home", ME, ME, 0o775)
    # As `setfacl -m u:OTHER:rwx` leaves it: version 2, then (tag, rights, user) of each line.
    lines = [(1, 7, -1), (2, 7, OTHER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    rules = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *line) for line in lines)
    try:
        os.setxattr(home, trust.ACCESS_LIST, rules)
    except OSError as error:
        pytest.skip(f"access lists do not work here: {error}")
    why = done_by(ME, lambda: refusal(home))
    assert why == f"{home} can be written by other users of its group"


@as_root
def test_the_group_of_root_is_not_root(root):
    home = folder(root / "home", 0, 0, 0o770)
    assert pwd.getpwuid(0).pw_gid == 0
    assert refusal(home) == f"{home} can be written by other users of its group"


# ---------------------------------------------------------------- attacks

SOURCE = KernelSource("int NAME(void) { return 1; }")
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def exchange(one, other):
    """Let two files change places, in one step."""
    call = ctypes.CDLL(None, use_errno=True).renameat2
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Two libraries with a kernel: ours returns 1, theirs writes the file in MARKER when loaded."""
    work_folder = tmp_path_factory.mktemp("libraries")
    hostile = (
        "#include <fcntl.h>\n#include <stdlib.h>\n__attribute__((constructor)) void begin(void) "
        '{ open(getenv("MARKER"), O_CREAT | O_WRONLY, 0666); }\n'
    )
    codes = []
    for name, text in (("ours", ""), ("theirs", hostile)):
        (work_folder / f"{name}.c").write_text(f"{text}{SOURCE.kernel}\n")
        command = ["gcc", "-shared", "-fPIC", f"{name}.c", "-o", f"{name}.so"]
        subprocess.run(command, cwd=work_folder, check=True)
        codes.append((work_folder / f"{name}.so").read_bytes())
    return codes


def replaced(old, new):
    return new


def give(path, user):
    """Give a folder with all in it to a user."""
    for part in (path, *path.rglob("*")):
        os.lchown(part, user, user)


def parent_of_another(root):
    return folder(root / "theirs", OTHER, OTHER, 0o755)


def parent_for_a_group(root):
    return folder(root / "theirs", ME, OTHER, 0o775)


def grandparent_for_all(root):
    folder(root / "theirs", 0, 0, 0o777)
    return folder(root / "theirs" / "mine", ME, ME, 0o755)


def link_in_a_shared_folder(root):
    return folder(root / "theirs", 0, 0, 0o1777)


ATTACKS = [parent_of_another, parent_for_a_group, grandparent_for_all, link_in_a_shared_folder]


@pytest.fixture
def attack(request, root, libraries, monkeypatch):
    """The victim's cache folder, and what the attacker does over and over.

    There is our library, and in the folder that the attacker exchanges for it the attacker's.
    """
    ours, theirs = libraries
    above = request.param(root)
    good, bad = folder(root / "good", 0), folder(root / "bad", 0)
    for base, code in ((good, ours), (bad, theirs)):
        assert Store(base / "cache").keep([compiler.KERNELS.entry(SOURCE, code)], replaced)
    give(good, ME)
    give(bad, OTHER)
    for path in (bad, *bad.rglob("*")):
        path.chmod(0o755)
    marker = folder(root / "marker", 0, 0, 0o777) / "marker"
    monkeypatch.setenv("MARKER", str(marker))
    if request.param is link_in_a_shared_folder:
        cache, other = above / "cache", above / "other"
        cache.symlink_to(good / "cache")
        other.symlink_to(bad / "cache")
        os.lchown(cache, OTHER, OTHER)
        os.lchown(other, OTHER, OTHER)
        swapped = cache, other
    elif request.param is grandparent_for_all:
        cache = above / "cache"
        (good / "cache").rename(cache)
        (bad / "cache").rename(folder(above.parent / "bad", OTHER, OTHER, 0o755) / "cache")
        swapped = above, above.parent / "bad"
    else:
        cache = above / "cache"
        (good / "cache").rename(cache)
        (bad / "cache").rename(above / "other")
        swapped = cache, above / "other"
    return cache, swapped, marker


def load_often(cache, monkeypatch, times):
    """Load the kernel as a new process does, again and again; return how often it was found."""
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mg.MinigraphWarning)
        for _ in range(times):
            begin(monkeypatch, cache)
            count += len(list(compiler.KERNELS._load_stored({SOURCE.name: SOURCE})))
    return count


@needs_compiler
@as_root
@pytest.mark.parametrize("times", [60, long(600)])
@pytest.mark.parametrize("attack", ATTACKS, indirect=True)
def test_code_that_is_exchanged_while_it_is_loaded_does_not_run(
    attack, times, libraries, monkeypatch
):
    cache, swapped, marker = attack
    with meanwhile(OTHER, lambda: exchange(*swapped)):
        assert done_by(ME, lambda: load_often(cache, monkeypatch, times)) == 0
    assert not marker.exists()
    done_by(ME, lambda: str(library.load(libraries[1])))
    assert marker.exists()  # which shows that the attacker's code would have been seen


@needs_compiler
@as_root
def test_code_in_a_folder_of_ours_runs_whatever_others_do(root, libraries, monkeypatch):
    shared = folder(root / "shared", 0, 0, 0o1777)

    def attack():
        with contextlib.suppress(OSError):
            exchange(shared / "cache", shared / "other")

    folder(shared / "other", OTHER, OTHER, 0o777)
    store = Store(shared / "cache")
    assert store.keep([compiler.KERNELS.entry(SOURCE, libraries[0])], replaced)
    give(shared / "cache", ME)
    with meanwhile(OTHER, attack):
        assert done_by(ME, lambda: load_often(shared / "cache", monkeypatch, 30)) == 30


# ---------------------------------------------------------------- cache files


@as_root
def test_a_cache_file_that_is_exchanged_while_it_is_read_is_not_taken_for_ours(root):
    """The parent folder belongs to another user, who exchanges our folder with another one."""
    above = folder(root / "theirs", OTHER, OTHER, 0o755)
    for name, owner in (("ours", ME), ("other", OTHER)):
        home = folder(above / name, 0, 0, 0o755)
        entry = Entry("jit", name, (), "{}", name.encode())
        file.write(home / "net.cache", {}, [entry], replaced)
        give(home, owner)
        (home / "net.cache").chmod(0o644)

    def read_often():
        """Read 200 times, and on until both were read: the other user may wait for a processor."""
        reads, count, until = [], 0, time.monotonic() + 30
        while count < 200 or (len(set(reads)) < 2 and time.monotonic() < until):
            read = file.read(above / "ours" / "net.cache")
            reads += [(entry.subject, read.unsafe) for entry in read.entries]
            count += 1
        return reads

    with meanwhile(OTHER, lambda: exchange(above / "ours", above / "other")):
        reads = done_by(ME, read_often)
    assert {subject for subject, _ in reads} == {"ours", "other"}
    assert {why for _, why in reads} == {f"{above} belongs to another user"}
