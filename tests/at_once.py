"""Functions that run at once, each in a thread."""

import threading


def in_threads(*jobs, seconds=120):
    """Run functions at the same time; raise the first error, or an error if one does not end."""
    errors = []
    start = threading.Barrier(len(jobs))

    def run(job):
        try:
            start.wait(30)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if errors:
        raise errors[0]
    hanging = sum(thread.is_alive() for thread in threads)
    assert not hanging, f"{hanging} of {len(threads)} threads did not end within {seconds} seconds"
