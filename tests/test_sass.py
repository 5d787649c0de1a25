"""What `benchmarks/sass.py` reads in machine code, and the table that it is for."""

import cuda_on_cpu
import pytest
import sass

from minigraph.jit.source import KernelSource

LISTING = """
.text.sum:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_3:
        /*0010*/               @P0 BRA P1, `(.L_x_1) ;
        /*0020*/               @P2 LDG.E.U16 R2, desc[UR4][R8.64] ;
        /*0030*/               @P3 LDG.E.U16 R3, desc[UR4][R8.64+0x2] ;
        /*0040*/                   FADD R2, R2, R3 ;
        /*0050*/                   BRA `(.L_x_2) ;
.L_x_1:
        /*0060*/                   LDG.E.64 R2, desc[UR4][R8.64] ;
.L_x_2:
        /*0070*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0080*/              @!P0 BRA `(.L_x_3) ;
.L_x_4:
        /*0090*/                   FADD R2, R2, R2 ;
        /*00a0*/                   ISETP.GE.AND P0, PT, R2, R3, PT ;
        /*00b0*/              @!P0 BRA `(.L_x_4) ;
        /*00c0*/                   STL [R1], R2 ;
        /*00d0*/                   EXIT ;
.L_x_5:
        /*00e0*/                   BRA `(.L_x_5);
        /*00f0*/                   NOP;
"""


def test_the_path_for_whole_vectors_counts_in_a_loop_that_moves_memory():
    code = sass.parse(LISTING)["sum"]
    assert len(code) == 14
    assert list(sass.loops(code)) == [sass.Loop(instructions=4, bytes=8)]


def test_what_a_loop_holds_is_part_of_it():
    body = ["LDG.E.128 R2, [R8]", "FADD R2, R2, R3", "@P0 BRA `(.L_x_1)", "@P1 BRA `(.L_x_0)"]
    lines = [".text.k:", ".L_x_0:", body[0], ".L_x_1:", *body[1:], "EXIT"]
    text = "\n".join(x if x.startswith(".") else f"/*0*/ {x} ;" for x in lines)
    assert list(sass.loops(sass.parse(text)["k"])) == [sass.Loop(instructions=4, bytes=16)]


KERNEL = """
struct NAME_args { long long w[2]; };
extern "C" __global__ void __launch_bounds__(256)
NAME(const __grid_constant__ NAME_args a) {
  __shared__ float kept[256];
  kept[threadIdx.x] = ((float *)a.w[0])[threadIdx.x];
  __syncthreads();
  ((float *)a.w[1])[threadIdx.x] = kept[255 - threadIdx.x];
}
"""


def test_registers_and_shared_memory_stand_in_the_cubin():
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    source = KernelSource(KERNEL)
    cubin = nvrtc.compile_program(cuda_on_cpu.program([source]), "sm_80")
    (code,) = sass.machine_code(cubin, None).values()
    assert 8 <= code.registers <= 32
    assert (code.stack, code.shared, code.spills, code.instructions) == (0, 1024, 0, 0)


def test_a_table_has_a_row_for_each_text_and_a_sum(capsys, monkeypatch):
    pytest.importorskip("minigraph.devices.cuda.device", exc_type=ImportError)
    import cuda_kernels

    monkeypatch.setattr("sys.argv", ["cuda_kernels.py", "mlp", "--rows", "100"])
    cuda_kernels.main()
    title, _, head, _, *rows, last, _, _ = capsys.readouterr().out.split("\n")
    assert title.startswith("MLP 784-128-10, batch 32, float32, level 3; minigraph")
    assert "| registers | shared |" in head
    assert last.startswith(f"| all {len(rows)} texts |")
