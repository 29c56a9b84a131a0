"""The parts of docs/benchmarks.md, and the words behind ./run that measure each of them on a machine of two cores."""

# part: the words behind ./run. The parts of HOURS run only when they are named.
PARTS = {
    "move": "bench reshape",
    "reshape": "bench reshape --compare openmpi,openmpi5,intelmpi,mpich -n 2,4 --rounds 2 -i 20 --timeout 60",
    "collectives": "bench collectives --compare openmpi,openmpi5,intelmpi,mpich,gloo -n 2,4 --rounds 2 -i 20 "
                   "--timeout 60",
    "torch-collectives": "bench torch-collectives -n 2 --step 16",
    "tcp": "bench tcp -i 21",
    "cast": "python -m shardwire.launch -n 2 bench/cast.py -i 21",
    "weights": "bench weights -i 5",
    "groups": "bench groups --ranks 2,8,32",
    "queue": "bench queue",
    "symm": "bench symm",
    "kernels": "--torch pip bench kernels",
    "experts": "--torch pip bench experts --dtypes float32,bfloat16,float8_e4m3fn --rounds 2",
    "fft": "bench fft --shapes 64x64x64,128x128x128,512x512 --rounds 2",
    "matmul": "bench matmul --sizes 2048 --rounds 2",
    "solver": "bench solver --sizes 2048 --rounds 2",
    "beside": "bench beside --ranks 2,6 --loops 12 --iterations 60 --turns 2",
}
HOURS = {
    "cuda": "--torch pip bench torch-collectives --device cuda --min-bytes 4096 --iterations 9",
    "kills": "bench kills --ways shm,tcp,survive-shm,survive-tcp --trials 250 --seed 2811",
    "mismatches": "bench mismatches --rounds 4 --seed 9100",
    "rounds": "bench rounds --rounds 20000",
    "soak": "bench soak",
    "elastic": "bench elastic",
}
ALL = {**PARTS, **HOURS}
