#!/usr/bin/env python3
"""Pairs that take turns on one completion queue: C beside the library. See README.md.

    scale.py BUILD [--rounds N] [--pairs N,N..] [name=command ..]

BUILD is the `build` folder of the instrument, with scale-c in bin/ and rs-interlock-scale in target/release/. For both
orders of the turns, the script prints the least time of a completion in N runs of each program; the programs and
numbers of pairs are interleaved. It also prints the 64-byte cache lines that a completion misses in caches of 48 KiB
and of 1 MiB, by callgrind: those of the device, which is the instrument, and those of everything else.
"""
import collections, os, re, subprocess, sys, tempfile

ROUNDS = 3  # in one process


def messages(pairs):
    # Whole cycles of a send queue, so that events that happen once in each cycle are included.
    return max(40000, 16 * pairs)


def environment(lib):
    return dict(os.environ, LD_LIBRARY_PATH=lib, NULLVERBS_SYSFS=lib + "/sysfs", NULLVERBS_LOOPBACK="0",
                LD_PRELOAD=lib + "/libsysfs.so", LD_BIND_NOW="1")


def time(command, pairs, order, env):
    arguments = [str(pairs), str(messages(pairs)), str(ROUNDS), *order]
    run = subprocess.run(["chrt", "-f", "60", "taskset", "-c", "1", *command, *arguments], env=env,
                         capture_output=True, text=True, check=True)
    return int(re.search(r"NS (\d+)", run.stdout)[1]) / messages(pairs)


def counts(command, pairs, order, env, rounds):
    """Instructions and misses in the first and last cache level, of the device and of everything else."""
    total = collections.Counter()
    with tempfile.NamedTemporaryFile(suffix=".cg") as out:
        simulation = ["--cache-sim=yes", "--D1=49152,12,64", "--LL=1048576,16,64", "--toggle-collect=*counted_work*"]
        format = ["--compress-strings=no", "--compress-pos=no", "--callgrind-out-file=" + out.name]
        arguments = [str(pairs), str(messages(pairs)), str(rounds), *order]
        subprocess.run(["valgrind", "-q", "--tool=callgrind", *simulation, *format, *command, *arguments], env=env,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        whose, of_call = None, False
        for line in open(out.name):
            if line.startswith("events:"):
                events = line.split()[1:]
            elif line.startswith("ob="):
                whose = "device" if "libibverbs" in line else "own"
            elif line.startswith("calls="):
                of_call = True
            elif line[0].isdigit() and not of_call:
                cost = collections.Counter(dict(zip(events, map(int, line.split()[1:]))))
                for name, parts in (("instructions", ("Ir",)), ("48K", ("D1mr", "D1mw")), ("1M", ("DLmr", "DLmw"))):
                    total[whose, name] += sum(cost[part] for part in parts)
            elif line[0].isdigit():
                of_call = False
    return total


def main():
    build, rest = sys.argv[1], sys.argv[2:]
    programs = {"C": [build + "/bin/scale-c", "table"], "C, apart": [build + "/bin/scale-c", "apart"],
                "C, irregular": [build + "/bin/scale-c", "irregular"],
                "C, ids": [build + "/bin/scale-c", "ids"], "ours": [build + "/target/release/rs-interlock-scale"]}
    rounds, all_pairs = 20, [1, 10, 100, 1000, 10000]
    while rest:
        word = rest.pop(0)
        if word == "--rounds":
            rounds = int(rest.pop(0))
        elif word == "--pairs":
            all_pairs = [int(pairs) for pairs in rest.pop(0).split(",")]
        else:
            name, command = word.split("=", 1)
            programs[name] = command.split()
    env = environment(build + "/lib")
    for order in ([], ["shuffled"]):
        least = {}
        for _ in range(rounds):
            for pairs in all_pairs:
                for name, command in programs.items():
                    least.setdefault((name, pairs), []).append(time(command, pairs, order, env))
        print("shuffled" if order else "in order of making")
        for pairs in all_pairs:
            print(f"{pairs:>6}", end="")
            for name in programs:
                now, first = min(least[name, pairs]), min(least[name, all_pairs[0]])
                print(f" | {name}: {now:.1f} ({now / first:.2f})", end="")
            print(f" | ours to C {min(least['ours', pairs]) / min(least['C', pairs]):.2f}")
        for pairs in all_pairs:
            for name, command in programs.items():
                once, thrice = (counts(command, pairs, order, env, n) for n in (1, 3))
                each = collections.Counter({key: (thrice[key] - once[key]) / (2 * messages(pairs)) for key in thrice})
                text = {whose: ", ".join(f"{event} {each[whose, event]:.2f}" for event in ("instructions", "48K", "1M"))
                        for whose in ("device", "own")}
                print(f"{pairs:>6} {name:>9}: device {text['device']}; own {text['own']}")


main()
