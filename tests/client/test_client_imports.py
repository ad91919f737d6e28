"""What a client needs."""

import subprocess
import sys
import textwrap


def test_a_client_needs_numpy_msgspec_and_websockets_alone_and_no_fcntl() -> None:
    program = """
        import sys
        sys.modules["fcntl"] = None  # from now on importing it fails
        before = {name.partition(".")[0] for name in sys.modules}
        import rekindle.client
        loaded = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
        loaded = {name for name in loaded if not name.startswith("_")}
        assert loaded <= {"msgspec", "numpy", "rekindle", "typing_extensions", "websockets"}, loaded
        rooms = {name for name in sys.modules if name.startswith("rekindle.")}
        assert not {name for name in rooms if name.split(".")[1] in ("session", "storage", "run", "server")}, rooms
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], check=True)
