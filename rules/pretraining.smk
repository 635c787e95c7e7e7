rule pretraining:
    """Train one segment, from a boundary step to the next."""
    input:
        RUN.inputs("pretraining"),
    output:
        RUN.stamp("pretraining"),
    log:
        RUN.log("pretraining"),
    benchmark:
        RUN.benchmark("pretraining")
    conda:
        "../environment.yml"
    threads: RUN.threads("pretraining")
    resources:
        **RUN.resources("pretraining"),
    params:
        job=JOB,
        again=AGAIN,
    shell:
        # Told to stop, training saves and ends with 75; on Slurm its job then goes back into the queue. The shell must outlive SIGTERM.
        "trap : TERM; {params.job} --node pretraining --work {wildcards.work} > {log:q} 2>&1 || {params.again} $?"


rule pretraining_benchmarking:
    """Measure how fast one layout trains here; on one machine alone, as other jobs would disturb it."""
    input:
        RUN.inputs("pretraining.benchmarking"),
    output:
        RUN.stamp("pretraining.benchmarking"),
    log:
        RUN.log("pretraining.benchmarking"),
    benchmark:
        RUN.benchmark("pretraining.benchmarking")
    conda:
        "../environment.yml"
    threads: workflow.resource_settings.cores or RUN.threads("pretraining.benchmarking")
    resources:
        **RUN.resources("pretraining.benchmarking"),
    params:
        job=JOB,
    shell:
        "{params.job} --node pretraining.benchmarking --work {wildcards.work} > {log:q} 2>&1"
