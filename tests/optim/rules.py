"""The published update rules in plain NumPy, float64, one array at a time.

Each rule takes the initial weights, the gradients of the updates and the learning rate
of each, and returns the weights at which the network is trained and those that are
evaluated.
"""

from __future__ import annotations

import numpy as np


def adam_terms(gradients, beta_1, beta_2):
    """Yields (t, m', v') of every update."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        yield t, m / (1 - beta_1**t), v / (1 - beta_2**t)


def adamw(w, gradients, rates, beta_1, beta_2, epsilon, weight_decay):
    """Loshchilov and Hutter 2019, algorithm 2."""
    terms = adam_terms(gradients, beta_1, beta_2)
    for (_, m, v), rate in zip(terms, rates, strict=True):
        w = w - rate * (m / (np.sqrt(v) + epsilon) + weight_decay * w)
    return w, w


def lion(w, gradients, rates, beta_1, beta_2, weight_decay=0.0):
    """Chen et al. 2023, program 1."""
    m = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        update = np.sign(beta_1 * m + (1 - beta_1) * g)
        m = beta_2 * m + (1 - beta_2) * g
        w = w - rate * (update + weight_decay * w)
    return w, w


def lars(w, gradients, rates, momentum, weight_decay, trust_coefficient):
    """You et al. 2017, algorithm 1; vectors are neither adapted nor decayed."""
    v = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        local, decay = 1.0, 0.0
        if w.ndim > 1:
            decay, norm = weight_decay, np.linalg.norm(w)
            local = trust_coefficient * norm / (np.linalg.norm(g) + decay * norm)
        v = momentum * v + rate * local * (g + decay * w)
        w = w - v
    return w, w


def lamb(w, gradients, rates, beta_1, beta_2, epsilon, weight_decay):
    """You et al. 2020, algorithm 2; vectors are neither adapted nor decayed."""
    terms = adam_terms(gradients, beta_1, beta_2)
    for (_, m, v), rate in zip(terms, rates, strict=True):
        update, ratio = m / (np.sqrt(v) + epsilon), 1.0
        if w.ndim > 1:
            update = update + weight_decay * w
            ratio = np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate * ratio * update
    return w, w


def newton_schulz(x):
    """Jordan et al. 2024, five rounds."""
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(w, gradients, rates, momentum, weight_decay, **adam):
    """Jordan et al. 2024 with the scale of Liu et al. 2025; vectors by AdamW."""
    if w.ndim < 2:
        return adamw(w, gradients, rates, weight_decay=weight_decay, **adam)
    v = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        v = momentum * v + g
        matrix = (g + momentum * v).reshape(-1, w.shape[-1])
        scale = 0.2 * np.sqrt(max(matrix.shape))
        update = scale * newton_schulz(matrix).reshape(w.shape)
        w = w - rate * (update + weight_decay * w)
    return w, w


def soap(w, gradients, rates, beta_1, beta_2, epsilon, precondition_every):
    """Vyas et al. 2024, algorithms 3 and 4; the first gradient only makes the bases."""
    shape = (w.size // w.shape[-1], w.shape[-1]) if w.ndim > 1 else (1, w.size)
    left = right = 0.0
    q_left, q_right = np.eye(shape[0]), np.eye(shape[1])
    m = v = np.zeros(shape)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True)):
        g = g.reshape(shape)
        if t > 0:
            m = beta_1 * m + (1 - beta_1) * g
            v = beta_2 * v + (1 - beta_2) * (q_left.T @ g @ q_right) ** 2
            mean, square = m / (1 - beta_1**t), v / (1 - beta_2**t)
            rotated = q_left.T @ mean @ q_right / (np.sqrt(square) + epsilon)
            w = w - rate * (q_left @ rotated @ q_right.T).reshape(w.shape)
        if w.ndim > 1:
            left = beta_2 * left + (1 - beta_2) * g @ g.T
            right = beta_2 * right + (1 - beta_2) * g.T @ g
            if t == 0:
                q_left = np.linalg.eigh(left)[1][:, ::-1]
                q_right = np.linalg.eigh(right)[1][:, ::-1]
            elif t % precondition_every == 0:
                q_left = np.linalg.qr(left @ q_left)[0]
                q_right = np.linalg.qr(right @ q_right)[0]
    return w, w


def schedule_free_sgd(w, gradients, rates, beta_1, weight_decay=0.0):
    """Defazio et al. 2024, section 3, with weights that are squared rates."""
    x = z = y = w
    total = 0.0
    for g, rate in zip(gradients, rates, strict=True):
        z = z - rate * (g + weight_decay * y)
        total += rate**2
        x = (1 - rate**2 / total) * x + rate**2 / total * z
        y = (1 - beta_1) * z + beta_1 * x
    return y, x


def schedule_free_adamw(w, gradients, rates, beta_1, beta_2, epsilon, weight_decay):
    """Defazio et al. 2024, algorithm 1."""
    x = z = y = w
    v = total = 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        rate = rate * np.sqrt(1 - beta_2**t)
        v = beta_2 * v + (1 - beta_2) * g**2
        z = z - rate * (g / (np.sqrt(v) + epsilon) + weight_decay * y)
        total += rate**2
        x = (1 - rate**2 / total) * x + rate**2 / total * z
        y = (1 - beta_1) * z + beta_1 * x
    return y, x
