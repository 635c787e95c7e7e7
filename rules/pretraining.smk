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
        mem_mb=RUN.memory("pretraining"),
    params:
        job=JOB,
    shell:
        "{params.job} --node pretraining --work {wildcards.work} > {log:q} 2>&1"
