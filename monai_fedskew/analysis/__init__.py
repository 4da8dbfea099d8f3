"""What the papers measure beside accuracy: curvature of losses, Gram matrices, toy problems."""
