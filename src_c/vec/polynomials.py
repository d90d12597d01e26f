"""Derive the polynomials of ``vec_math.inc`` and print them with their errors.

exp2: q with 2^r = 1 + r * q(r) on [-1/2, 1/2], least relative error.
      The same for one piece of bfloat16 (``mmla/matrix.inc``), and on [0, 1] for one and for more
      pieces (``pieces/probabilities.inc``).
tanh: t with tanh(y) = y * (1 + z * t(z)), z = y^2, on |y| <= 5/8, least relative error.
log2: q with log2(1 + t) = t * q(t) on [-1/4, 1/2], least error (``pieces/scaled.inc``).

Run ``python src_c/vec/polynomials.py``; needs mpmath. ``tests/test_kernels.py`` checks the
errors, ``tests/test_words.py`` that of log2.
"""

import mpmath

mpmath.mp.dps = 60


def fit(function, low, high, degree, weight):
    """Polynomial of least weighted maximum error (Remez exchange on a dense Chebyshev grid)."""
    count = degree + 2
    middle, half = (high + low) / 2, (high - low) / 2
    points = [middle - half * mpmath.cos(mpmath.pi * i / (count - 1)) for i in range(count)]
    grid = [middle - half * mpmath.cos(mpmath.pi * i / 800) for i in range(801)]
    for _ in range(12):
        rows = mpmath.matrix(count, count)
        right = mpmath.matrix(count, 1)
        for row, x in enumerate(points):
            for power in range(degree + 1):
                rows[row, power] = x**power
            rows[row, degree + 1] = (-1) ** row / weight(x)
            right[row] = function(x)
        solution = mpmath.lu_solve(rows, right)
        coefficients = [solution[i] for i in range(degree + 1)]

        def error(x, coefficients=coefficients):
            return (mpmath.polyval(coefficients[::-1], x) - function(x)) * weight(x)

        points = extrema(error, grid, count)
    return coefficients, max(abs(error(x)) for x in grid)


def extrema(error, grid, count):
    """The points of largest error of each sign change, `count` of them."""
    values = [error(x) for x in grid]
    runs = [[0]]
    for i in range(1, len(grid)):
        if (values[i] > 0) == (values[runs[-1][0]] > 0):
            runs[-1].append(i)
        else:
            runs.append([i])
    best = [max(run, key=lambda i: abs(values[i])) for run in runs]
    while len(best) > count:
        best.pop(0 if abs(values[best[0]]) < abs(values[best[-1]]) else -1)
    if len(best) < count:
        raise RuntimeError("the error alternates too rarely; use a denser grid")
    return [grid[i] for i in best]


def exp2_quotient(r):
    if abs(r) < mpmath.mpf(10) ** -20:
        return mpmath.log(2)
    return (mpmath.power(2, r) - 1) / r


def exp2_weight(r):
    return (abs(r) + 1e-9) / mpmath.power(2, r)


def tanh_quotient(z):
    if z < mpmath.mpf(10) ** -20:
        return -mpmath.mpf(1) / 3
    y = mpmath.sqrt(z)
    return (mpmath.tanh(y) / y - 1) / z


def log2_quotient(t):
    if abs(t) < mpmath.mpf(10) ** -20:
        return 1 / mpmath.log(2)
    return mpmath.log(1 + t, 2) / t


def main():
    half = mpmath.mpf(1) / 2
    edge = mpmath.mpf(25) / 64
    for name, bits, degree in [("exp2", 32, 4), ("exp2", 64, 10)]:
        coefficients, error = fit(exp2_quotient, -half, half, degree, exp2_weight)
        show(name, bits, coefficients, error)
    coefficients, error = fit(exp2_quotient, -half, half, 2, exp2_weight)
    show("exp2 of one piece, rounded to nearest", 32, coefficients, error)
    for name, degree in [("exp2 of one piece", 2), ("exp2 of pieces", 4)]:
        coefficients, error = fit(exp2_quotient, mpmath.mpf(0), mpmath.mpf(1), degree, exp2_weight)
        show(name, 32, coefficients, error)
    for bits, degree in [(32, 4), (64, 11)]:
        coefficients, error = fit(tanh_quotient, mpmath.mpf(0), edge, degree, lambda z: z + 1e-9)
        show("tanh", bits, coefficients, error)
    coefficients, error = fit(log2_quotient, -half / 2, half, 4, lambda t: abs(t) + 1e-9)
    show("log2", 32, coefficients, error, "absolute")


def show(name, bits, coefficients, error, kind="relative"):
    print(f"{name} {bits}: max {kind} error {mpmath.nstr(error, 3)}")
    for coefficient in coefficients:
        print("   ", mpmath.nstr(coefficient, 9 if bits == 32 else 17), ",")


if __name__ == "__main__":
    main()
