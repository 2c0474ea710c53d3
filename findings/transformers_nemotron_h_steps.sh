#!/usr/bin/env bash
# A Nemotron-H gives other logits for a prompt than for the same tokens one at a time.
#
# Version:  transformers 5.23.0, torch 2.13.0 on a CPU, in float32, with its own torch code for Mamba-2
# Expected: the logits of a text do not depend on whether it comes as a prompt or token by token with a cache.
# Seen:     time steps of a prompt are at least `time_step_min`, which configs have as 0.001, and those of a single token
#           have no bound. Where a model's steps are smaller, as those with a low `dt_bias`, what it generates is not
#           what the same tokens give in a prompt; vLLM has no bound in either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0 numpy
venv/bin/python - <<'PYTHON'
import torch
import transformers


def error(low):
    """Return how far logits of single tokens are from those of a prompt, with all time steps near exp(low)."""
    torch.manual_seed(0)
    config = transformers.NemotronHConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=44,
        layers_block_type=["linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        mamba_num_heads=4,
        mamba_head_dim=8,
        n_groups=1,
        ssm_state_size=8,
        layer_norm_epsilon=1e-12,
    )
    model = transformers.NemotronHForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data *= 10  # from those that training begins with
    mixer = model.model.layers[0].mixer
    mixer.dt_bias.data.fill_(low)
    mixer.A_log.data.fill_(5.0)
    mixer.D.data.zero_()
    ids = torch.randint(0, 64, (1, 24))
    with torch.no_grad():
        prompt = model(ids, use_cache=False).logits[0]
        cache, parts = None, []
        for token in ids[0]:
            step = model(token.view(1, 1), past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            parts.append(step.logits[0])
    difference = (torch.cat(parts) - prompt).abs().max() / prompt.std()
    return float(difference)


usual, small = error(0.0), error(-9.0)
print(f"steps near 0.7: {usual:.1e} standard deviations; steps near 0.0001: {small:.1e}")
assert usual < 1e-4, "they differ in any case now"
assert small > 1e-3, "they no longer differ"
PYTHON
