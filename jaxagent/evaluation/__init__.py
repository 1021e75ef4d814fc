"""What a policy, or stored kernels, achieve on a set of tasks."""
