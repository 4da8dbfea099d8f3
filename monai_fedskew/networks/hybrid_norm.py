"""Hybrid batch normalisation: a learnable mix of the batch's statistics and the federation's."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["HybridNorm"]


class HybridNorm(nn.Module):
    """Normalise (B, C, ...) by a mix of batch and global statistics, one learnable factor a channel.

    Training: mean = (1 - a) m + a m_B and variance = (1 - a) v + a v_B with a = sigmoid(``mix``), which starts at 1/2;
    m_B, v_B over the batch and all places, v_B with the divisor n. Evaluation: m and v alone. Then the affine pair.
    As long as nothing was measured (``measured`` = 0) there is nothing to mix in, and a = 1: a mean of 0 and a variance
    of 1 that are true nowhere would be handed on from layer to layer.

    The global statistics (m, v) lie in three buffers that a plain weighted mean over sites turns into those of all
    sites together, the variance between sites included: ``mean``; ``center`` c, the same at all sites; ``spread``, the
    mean squared distance from c. v = spread - (mean - c)^2. (Averaged variances would leave out what lies between
    sites; squares about 0 would lose digits.) ``measured`` counts measurements, as an integer, of which the greatest
    is taken.

    Chen et al. 2025, Hybrid Batch Normalisation, arXiv 2505.21877; see ``monai_fedskew.methods.hbn``.

    Args:
        features: channels C.
        eps: is added to the variance.
        affine: scale and shift afterwards.

    Example:
        >>> HybridNorm(3)(torch.randn(2, 3, 4, 4)).shape
        torch.Size([2, 3, 4, 4])
    """

    def __init__(self, features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.features, self.eps = features, eps
        self.mix = nn.Parameter(torch.zeros(features))
        self.register_parameter("weight", nn.Parameter(torch.ones(features)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(features)) if affine else None)
        self.weight: Tensor | None
        self.bias: Tensor | None
        self.mean: Tensor
        self.spread: Tensor
        self.center: Tensor
        self.measured: Tensor
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))
        self.register_buffer("center", torch.zeros(features))
        self.register_buffer("measured", torch.zeros((), dtype=torch.long))

    @staticmethod
    def like(norm: _BatchNorm) -> "HybridNorm":
        """Return the layer in the place of a batch norm, with its affine pair and running statistics."""
        new = HybridNorm(norm.num_features, norm.eps, norm.affine)
        if norm.affine:
            new.weight = nn.Parameter(norm.weight.detach(), norm.weight.requires_grad)
            new.bias = nn.Parameter(norm.bias.detach(), norm.bias.requires_grad)
            new = new.to(norm.weight)
        if norm.running_mean is not None and norm.running_var is not None:
            new = new.to(norm.running_mean)
            for buffer, value in (
                (new.mean, norm.running_mean),
                (new.center, norm.running_mean),
                (new.spread, norm.running_var),
            ):
                buffer.copy_(value)
            new.measured.fill_(1 if norm.num_batches_tracked is None else norm.num_batches_tracked.clamp(max=1))
        return new

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised values, shaped as ``x`` (B, C, ...)."""
        mean, variance = self.mixed(x) if self.training else (self.mean, self.variance())
        shape = [1, -1] + [1] * (x.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        out = (x - mean.view(shape)) * scale.view(shape)
        return out if self.bias is None else out + self.bias.view(shape)

    def variance(self) -> Tensor:
        """Return the global variance, (C,)."""
        return (self.spread - (self.mean - self.center).square()).clamp(min=0.0)

    def batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (divisor n) of a batch over all axes but the channels, (C,) each."""
        flat = x.to(self.mean.dtype).transpose(0, 1).reshape(self.features, -1)
        variance, mean = torch.var_mean(flat, dim=1, correction=0)
        return mean, variance

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance a batch is normalised by in training, (C,) each."""
        share = torch.where(self.measured > 0, torch.sigmoid(self.mix), 1.0)
        mean, variance = self.batch(x)
        return torch.lerp(self.mean, mean, share), torch.lerp(self.variance(), variance, share)

    @torch.no_grad()
    def observe(self, mean: Tensor, variance: Tensor, momentum: float) -> None:
        """Take a site's own statistics into the buffers, for the mean over sites: x <- (1 - momentum) x + momentum new.

        The first measurement is taken whole.

        Args:
            mean: of the site, (C,).
            variance: of the site, (C,).
            momentum: share of the new statistics, in (0, 1].
        """
        momentum = momentum if self.measured else 1.0
        known, held = self.mean.clone(), self.variance()
        mean, variance = mean.to(known), variance.to(known)
        self.center.copy_(known)
        self.mean.lerp_(mean, momentum)
        self.measured.add_(1)
        self.spread.copy_(torch.lerp(held, variance + (mean - known).square(), momentum))

    def extra_repr(self) -> str:
        """Say the size."""
        return f"{self.features}, eps={self.eps}, affine={self.weight is not None}"
