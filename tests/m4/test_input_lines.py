"""What `translate --input` reads."""

from examples.m4.streams import read_lines


def test_lines_that_are_not_utf8_are_counted(tmp_path, capsys):
    path = tmp_path / "lines"
    path.write_bytes("grün\r\n".encode() + "grün\n".encode("latin-1") + b"\nlast")
    assert read_lines(str(path)) == ["grün", "gr\ufffdn", "", "last"]
    assert capsys.readouterr().err == "1 of 4 lines are not UTF-8 everywhere\n"
